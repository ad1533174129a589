//! What each long-running program of ours does: logs, metrics, health, client, signals, leadership.
//!
//! It knows nothing of nodes, plans or hosts; an agent and an operator are the same to it.
