//! What the processes of one node share: the table of open descriptions, its anchors, names of sockets and directories.
