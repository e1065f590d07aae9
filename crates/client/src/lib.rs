//! The client core that all faces share.
