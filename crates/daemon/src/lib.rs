//! The daemon: agent, server and controller of one node.
