//! Connections: TCP and Unix sockets, authentication, parallel exchanges, a server's workers.
