//! Chance that can be repeated, and how much of it a run takes.

use std::sync::OnceLock;

/// Whether to take the time for many more cases.
pub fn is_soak() -> bool {
    std::env::var_os("EVENKEEL_SOAK").is_some_and(|value| value != "0")
}

/// `EVENKEEL_SEED`, or the same each time; a soak has one of its own, which stays the same for as long as it runs.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("EVENKEEL_SEED").ok();
        let given = given.and_then(|text| text.parse().ok());
        given.unwrap_or_else(|| {
            if is_soak() {
                let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
                since.map_or(0, |since| u64::from(since.subsec_nanos()))
            } else {
                4
            }
        })
    })
}

/// Numbers by chance, the same for the same seed (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// A number below `limit`, which counts as at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from((mixed ^ (mixed >> 31)) % limit).unwrap_or_default()
    }
}
