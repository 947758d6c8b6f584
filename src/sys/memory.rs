//! Memory that is free goes back to the system.

/// Gives back what this thread has freed. The allocator does so by itself only where it is busy, and a worker whose
/// connections have all become silent is not.
pub fn give_back() {
    // SAFETY: takes no pointer and may be called by any thread at any time; it only looks at what is free already.
    #[allow(unsafe_code)]
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
}
