//! The metadata store: shards in memory with a write-ahead log, and every operation on them.
