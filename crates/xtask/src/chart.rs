//! The Helm chart of a release: as a file, and as what registries keep of one.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use evenkeel_xtask::archive::Archive;
use evenkeel_xtask::image::Layout;

const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// A chart that is packed.
#[derive(Debug)]
pub(crate) struct PackedChart {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The file that `helm install` takes.
    pub(crate) file: Vec<u8>,
    about: Value,
}

impl PackedChart {
    /// Packs the chart in `folder`, as old as `time`.
    pub(crate) fn pack(folder: &Path, time: u64) -> Result<Self> {
        let path = folder.join("Chart.yaml");
        let about = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let about: Value = serde_saphyr::from_str(&about)
            .with_context(|| format!("{} is not YAML", path.display()))?;
        let field = |name: &str| {
            let value = about[name].as_str().map(str::to_owned);
            value.with_context(|| format!("{} has no {name}", path.display()))
        };
        let (name, version) = (field("name")?, field("version")?);
        let mut files = Archive::default();
        files.folder(&name, folder)?;
        Ok(Self {
            name,
            version,
            file: files.tar_gz(time)?,
            about,
        })
    }

    /// What `helm pull oci://…` gets, as a file that `oras` and `skopeo` copy into a registry.
    pub(crate) fn artifact(&self, time: u64) -> Result<Vec<u8>> {
        let mut layout = Layout::new(time);
        let annotations = [
            ("org.opencontainers.image.title", self.name.as_str()),
            ("org.opencontainers.image.version", self.version.as_str()),
        ];
        let config = (CONFIG, &self.about);
        let chart = layout.artifact(config, (CONTENT, self.file.clone()), &annotations);
        layout.packed(&format!("{}:{}", self.name, self.version), chart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_packed_below_its_name_and_a_missing_version_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let about = folder.path().join("Chart.yaml");
        std::fs::write(&about, "name: boat\nversion: 1.2.3\n").unwrap();
        std::fs::create_dir(folder.path().join("templates")).unwrap();
        std::fs::write(folder.path().join("templates/sail.yaml"), "kind: Sail\n").unwrap();
        let chart = PackedChart::pack(folder.path(), 1).unwrap();
        assert_eq!(
            PackedChart::pack(folder.path(), 1).unwrap().file,
            chart.file
        );
        let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(chart.file.as_slice()));
        let entries = tar.entries().unwrap();
        let paths: Vec<_> = entries
            .map(|it| it.unwrap().path().unwrap().display().to_string())
            .filter(|it| !it.ends_with('/'))
            .collect();
        assert_eq!(paths, ["boat/Chart.yaml", "boat/templates/sail.yaml"]);
        assert!(!chart.artifact(1).unwrap().is_empty());
        std::fs::write(&about, "name: boat\n").unwrap();
        let error = PackedChart::pack(folder.path(), 1).unwrap_err().to_string();
        assert!(error.ends_with("Chart.yaml has no version"), "{error}");
    }
}
