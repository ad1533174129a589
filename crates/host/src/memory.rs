//! Memory that is held on to after a start or after a large configuration was read, and how to have less
//! of it.

/// Gives what is free back to the operating system, before a long idle time. It walks the whole heap.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `malloc_trim` takes the allocator's own locks and touches only memory that is free.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Keeps one heap for all threads instead of one for each: what a thread has freed is of use to the
/// others. For a program whose threads mostly wait, before it starts any.
pub fn share_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `mallopt` only sets a number of the allocator's own.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
