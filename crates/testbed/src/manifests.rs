//! Manifests as we ship them, in a namespace of a test's own: many tests share one control plane, and
//! two programs in one namespace would share a Lease.

use std::sync::{Mutex, PoisonError};

use crate::control_plane::ControlPlane;
use crate::scratch::Scratch;
use crate::{Doing, Result};

/// The namespace that our manifests name.
const SHIPPED: &str = "evenkeel";

/// Applies `manifests` with `namespace` in the place of the one they name.
pub fn apply_in(control_plane: &ControlPlane, manifests: &str, namespace: &str) -> Result<()> {
    /// Roles are the same for all tests: two who make one at the same time disturb each other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let scratch = Scratch::new("manifests")?;
    let file = scratch.path().join("manifests.yaml");
    std::fs::write(&file, moved_to(namespace, manifests)).doing(|| "cannot write manifests")?;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    control_plane
        .kubectl(&["apply", "-f", &file.display().to_string()])
        .map(|_| ())
}

fn moved_to(namespace: &str, manifests: &str) -> String {
    let moved = manifests.replace(
        &format!("namespace: {SHIPPED}\n"),
        &format!("namespace: {namespace}\n"),
    );
    let documents = moved.split("---\n").map(|document| {
        // Bindings outside of the namespace would be those of another test.
        if document.contains("Binding") {
            let name = format!("metadata:\n  name: {SHIPPED}");
            document.replacen(
                &name,
                &format!("metadata:\n  name: {namespace}-{SHIPPED}"),
                1,
            )
        } else {
            document.to_owned()
        }
    });
    documents.collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_another_and_bindings_are_the_tests_own() {
        let shipped = "kind: ServiceAccount\nmetadata:\n  name: evenkeel-x\n  namespace: evenkeel\n---\nkind: ClusterRoleBinding\nmetadata:\n  name: evenkeel-x\nroleRef:\n  name: evenkeel-x\nsubjects:\n- name: evenkeel-x\n  namespace: evenkeel\n";
        let moved = "kind: ServiceAccount\nmetadata:\n  name: evenkeel-x\n  namespace: t-1\n---\nkind: ClusterRoleBinding\nmetadata:\n  name: t-1-evenkeel-x\nroleRef:\n  name: evenkeel-x\nsubjects:\n- name: evenkeel-x\n  namespace: t-1\n";
        assert_eq!(moved_to("t-1", shipped), moved);
    }
}
