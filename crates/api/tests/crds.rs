//! `deploy/crds` holds what the types say. `EVENKEEL_BLESS=1` writes it anew.

use std::path::Path;

use evenkeel_api::crds;

const HEAD: &str =
    "# Made from crates/api by `EVENKEEL_BLESS=1 cargo test -p evenkeel-api --test crds`.\n";
const THEIRS: &str =
    "# As OpenShift has it: skip this file on a cluster that has the kind already.\n";

#[test]
fn the_definitions_in_deploy_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for (file, definition) in crds::all() {
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        let text = serde_saphyr::to_string_with_options(&definition, options).unwrap();
        let is_our_kind = definition["spec"]["group"] == "evenkeel.dev";
        let theirs = if is_our_kind { "" } else { THEIRS };
        let text = format!("{HEAD}{theirs}{text}");
        let path = folder.join(file);
        if std::env::var_os("EVENKEEL_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is stale: run EVENKEEL_BLESS=1 cargo test -p evenkeel-api --test crds",
            path.display()
        );
    }
}
