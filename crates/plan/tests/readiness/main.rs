//! What readiness promises, and what must never happen whatever does: on a small cluster whose clock,
//! API server, watches, extensions and other writers do what they like.
#![allow(clippy::unwrap_used, clippy::panic)] // In a test, a panic is the report.

mod conditions;
mod feeds;
mod nrc;
mod ownership;
mod powers;
mod promises;
mod scenarios;
#[path = "../script/mod.rs"]
mod script;
mod storms;
mod suspended;
mod waiting;
mod world;
