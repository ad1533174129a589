//! Memory that is held on to after a start or after a large configuration was read, and how to have less
//! of it.

/// Trims the memory to as little as possible, before a long idle time: gives what is free back, and lets go of code that was only
/// needed to get here. It walks the whole heap.
pub fn trim() {
    give_back();
    let_go_of_code();
}

/// Gives what is free back to the operating system.
fn give_back() {
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

/// Lets go of the pages of the program's own code; what is needed again comes back from its file.
fn let_go_of_code() {
    #[cfg(target_os = "linux")]
    {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        for (start, length) in code_of(&program.display().to_string(), &maps) {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: these are whole pages of code, mapped from the program's file and never written:
            // the next use of one reads the same bytes from there again.
            unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
        }
    }
}

/// Where the code of `program` is, and how long it is, as `/proc/self/maps` says. Only what can be run
/// and not be written: all else may differ from the file.
#[cfg(target_os = "linux")]
fn code_of(program: &str, maps: &str) -> Vec<(usize, usize)> {
    let code = maps.lines().filter_map(|line| {
        let (place, rest) = line.split_once(' ')?;
        let is_code = rest.starts_with("r-xp ") && !program.is_empty() && rest.ends_with(program);
        let (start, end) = place.split_once('-')?;
        let (start, end) = (
            usize::from_str_radix(start, 16).ok()?,
            usize::from_str_radix(end, 16).ok()?,
        );
        is_code.then(|| (start, end.saturating_sub(start)))
    });
    code.collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_itself_is_let_go_and_it_still_runs() {
        let maps = "\
1000-3000 r--p 00000000 08:01 1                          /usr/bin/evenkeel
3000-8000 r-xp 00002000 08:01 1                          /usr/bin/evenkeel
8000-9000 rw-p 00007000 08:01 1                          /usr/bin/evenkeel
a000-b000 r-xp 00000000 08:01 2                          /usr/lib/libc.so.6
c000-d000 r-xp 00000000 00:00 0                          [vdso]
";
        assert_eq!(code_of("/usr/bin/evenkeel", maps), [(0x3000, 0x5000)]);
        assert_eq!(code_of("", maps), []);
        trim();
        assert_eq!(code_of("/usr/lib/libc.so.6", maps), [(0xa000, 0x1000)]);
    }
}
