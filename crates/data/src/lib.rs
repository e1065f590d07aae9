//! The sub-file store: what one server holds of each file, sparse, in one or several directories.
