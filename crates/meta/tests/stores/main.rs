//! Tests of several stores as one cluster. They are one program: each program would hold all of the crate again.

mod common;

mod appends;
mod away;
mod copies;
mod crash;
mod find;
mod full;
mod handover;
mod layouts;
mod lazy;
mod model;
mod names;
mod relocking;
mod restriping;
mod sessions;
mod sizes;
mod temporary;
