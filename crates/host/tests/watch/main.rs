//! What watching a real tree promises: no drift is lost, and it is healed without a fight.
#![cfg(target_os = "linux")]

#[cfg(test)]
mod bed;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod healing;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod noticing;
