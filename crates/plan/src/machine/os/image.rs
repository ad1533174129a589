//! One form for the names of images: however a configuration or a machine says where an image comes from and who verifies
//! it, the image is the same.

/// Ways to name an image, before the name itself.
const FORMS: [&str; 7] = [
    "ostree-unverified-registry:",
    "ostree-unverified-image:registry:",
    "ostree-unverified-image:docker://",
    "ostree-image-signed:registry:",
    "ostree-image-signed:docker://",
    "registry:",
    "docker://",
];
/// Ways that name a remote of ostree first, whose keys verify the image.
const REMOTES: [&str; 2] = ["ostree-remote-registry:", "ostree-remote-image:"];

/// Who verifies an image before it is booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// Nobody but the registry that it comes from.
    None,
    /// The machine's policy for containers.
    Policy,
    /// The keys of a remote of ostree.
    Remote,
}

impl Verification {
    /// What a reference asks for.
    pub fn of(reference: &str) -> Self {
        if reference.starts_with("ostree-image-signed:") {
            Self::Policy
        } else if REMOTES.iter().any(|it| reference.starts_with(it)) {
            Self::Remote
        } else {
            Self::None
        }
    }
}

/// The image alone, for example `quay.io/os:1`.
pub fn plain(reference: &str) -> &str {
    let by_remote = REMOTES.iter().find_map(|it| reference.strip_prefix(it));
    let image = by_remote.and_then(|it| it.split_once(':'));
    let image = image.map_or(reference, |(_, image)| image);
    let plain = FORMS.iter().find_map(|it| image.strip_prefix(it));
    plain.unwrap_or(image)
}

/// Whether both name the same image.
pub fn is_same_image(one: &str, other: &str) -> bool {
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_same_in_every_form() {
        for reference in [
            "quay.io/os:1",
            "docker://quay.io/os:1",
            "registry:quay.io/os:1",
            "ostree-unverified-registry:quay.io/os:1",
            "ostree-unverified-image:docker://quay.io/os:1",
            "ostree-image-signed:docker://quay.io/os:1",
            "ostree-image-signed:registry:quay.io/os:1",
            "ostree-remote-registry:fedora:quay.io/os:1",
            "ostree-remote-image:fedora:docker://quay.io/os:1",
            "ostree-remote-image:fedora:registry:quay.io/os:1",
        ] {
            assert_eq!(plain(reference), "quay.io/os:1", "{reference}");
        }
        // A port and a digest are parts of the name; so is what comes from no registry.
        for reference in [
            "localhost:5000/os@sha256:1",
            "ostree-image-signed:oci:/var/os",
        ] {
            assert_eq!(plain(reference), reference);
        }
        assert!(is_same_image("docker://a:1", "a:1"));
        assert!(!is_same_image("a:1", "a:2"));
    }
}
