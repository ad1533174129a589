//! Memory that the allocator holds on to after a large configuration was read.

/// Gives what is free back to the operating system. For once after start: it walks the whole heap.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `malloc_trim` takes the allocator's own locks and touches only memory that is free.
        unsafe { libc::malloc_trim(0) };
    }
}
