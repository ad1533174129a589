//! How far a granted node is: words of the pool's status.

/// It stands in the status, and the node is told next.
pub const GRANTED: &str = "Granted";
/// Its pods leave.
pub const DRAINING: &str = "Draining";
/// In an upgrade: its old services go, and new files come.
pub const SUPPLYING: &str = "Supplying";
/// It was told, and is on its way.
pub const APPLYING: &str = "Applying";
/// Its Machine goes, and its MachineSet makes a new one.
pub const REPLACING: &str = "Replacing";
/// Its instance is listed no more, its pods have left, and it is made a bare machine.
pub const REMOVING: &str = "Removing";
/// It cannot go on.
pub const FAILING: &str = "Failing";
