//! Archives and images, for the release and for the test bed, which makes small images of its own.

#![forbid(unsafe_code)]

pub mod archive;
pub mod image;
