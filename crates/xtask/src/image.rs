//! Images of containers, and other artifacts for registries, in the format of the Open Container Initiative:
//! a folder of blobs that are named by their contents, packed as one file (`oci-archive`).

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::archive::{Archive, gzip, sha256};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// What an image is, besides its files.
#[derive(Debug, Clone, Copy)]
pub struct ImageConfig<'a> {
    /// Who runs in it, as `UID:GID`.
    pub user: &'a str,
    /// The program, and its first arguments.
    pub entrypoint: &'a [&'a str],
    /// What registries show of it.
    pub labels: &'a [(&'a str, &'a str)],
}

/// Blobs, and what an index says of them.
#[derive(Debug)]
pub struct Layout {
    archive: Archive,
    time: u64,
}

/// Where a blob is, as manifests say it.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptor(Value);

impl Descriptor {
    /// The digest of the blob.
    pub fn digest(&self) -> &str {
        self.0["digest"].as_str().unwrap_or_default()
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.0[key] = value;
        self
    }
}

impl Layout {
    /// An empty one, for artifacts as old as `time`.
    pub fn new(time: u64) -> Self {
        let mut archive = Archive::default();
        archive.file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
        Self { archive, time }
    }

    fn blob(&mut self, media: &str, contents: Vec<u8>) -> Descriptor {
        let digest = sha256(&contents);
        let size = contents.len();
        self.archive
            .file(&format!("blobs/sha256/{digest}"), contents);
        Descriptor(
            json!({ "mediaType": media, "digest": format!("sha256:{digest}"), "size": size }),
        )
    }

    fn json(&mut self, media: &str, value: &Value) -> Descriptor {
        self.blob(media, value.to_string().into_bytes())
    }

    /// An image of one architecture, with `files` as its only layer.
    pub fn image(
        &mut self,
        architecture: &str,
        files: &Archive,
        config: &ImageConfig<'_>,
    ) -> Result<Descriptor> {
        let tar = files.tar(self.time)?;
        let uncompressed = format!("sha256:{}", sha256(&tar));
        let layer = self.blob(LAYER, gzip(&tar)?);
        let labels = labels(config.labels);
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "User": config.user, "Entrypoint": config.entrypoint, "Labels": labels },
            "rootfs": { "type": "layers", "diff_ids": [uncompressed] },
        });
        let config = self.json(CONFIG, &config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.0,
            "layers": [layer.0],
            "annotations": labels,
        });
        let platform = json!({ "architecture": architecture, "os": "linux" });
        Ok(self.json(MANIFEST, &manifest).with("platform", platform))
    }

    /// An artifact that is no image: one blob, and the words that describe it.
    pub fn artifact(
        &mut self,
        config: (&str, &Value),
        layer: (&str, Vec<u8>),
        annotations: &[(&str, &str)],
    ) -> Descriptor {
        let config = self.json(config.0, config.1);
        let layer = self.blob(layer.0, layer.1);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.0,
            "layers": [layer.0],
            "annotations": labels(annotations),
        });
        self.json(MANIFEST, &manifest)
    }

    /// One image for several architectures.
    pub fn for_all(&mut self, images: &[Descriptor]) -> Descriptor {
        let manifests: Vec<&Value> = images.iter().map(|it| &it.0).collect();
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        self.json(INDEX, &index)
    }

    /// The file that `skopeo`, `podman`, `oras` and `ctr` read, in which `what` is called `name`.
    pub fn packed(mut self, name: &str, what: Descriptor) -> Result<Vec<u8>> {
        let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        // Without a registry in it, a name in a pod is one of the default registry.
        let whole = if name.contains('/') {
            name.to_owned()
        } else {
            format!("docker.io/library/{name}")
        };
        let named = what.with(
            "annotations",
            json!({ "io.containerd.image.name": whole, "org.opencontainers.image.ref.name": tag }),
        );
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [named.0] });
        self.archive.file("index.json", index.to_string());
        self.archive.tar(self.time)
    }
}

fn labels(labels: &[(&str, &str)]) -> Map<String, Value> {
    let labels = labels.iter();
    labels
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn unpacked(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        let files = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            (path, contents)
        });
        files.collect()
    }

    fn made(program: &str) -> (Vec<u8>, String) {
        let mut layout = Layout::new(1_700_000_000);
        let images: Vec<_> = ["amd64", "arm64"]
            .map(|architecture| {
                let mut files = Archive::default();
                files.program("usr/local/bin/it", format!("{program} for {architecture}"));
                let config = ImageConfig {
                    user: "65532:65532",
                    entrypoint: &["/usr/local/bin/it"],
                    labels: &[("org.opencontainers.image.version", "1.0.0")],
                };
                layout.image(architecture, &files, &config).unwrap()
            })
            .into();
        let all = layout.for_all(&images);
        let digest = all.digest().to_owned();
        (layout.packed("it:1.0.0", all).unwrap(), digest)
    }

    #[test]
    fn the_same_files_give_the_same_digest_and_others_another() {
        assert_eq!(made("program"), made("program"));
        assert_ne!(made("program").1, made("another").1);
    }

    #[test]
    fn every_blob_is_where_its_digest_says_and_every_size_is_right() {
        let (tar, digest) = made("program");
        let files = unpacked(&tar);
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        assert_eq!(index["manifests"][0]["digest"], json!(digest));
        let mut left = vec![index];
        let mut seen = 0;
        while let Some(value) = left.pop() {
            let lists = ["manifests", "layers"].map(|key| value[key].as_array().cloned());
            let mut of = lists.into_iter().flatten().flatten().collect::<Vec<_>>();
            of.extend(
                value
                    .get("config")
                    .filter(|it| it["digest"].is_string())
                    .cloned(),
            );
            for descriptor in of {
                let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
                let blob = &files[&format!("blobs/{digest}")];
                assert_eq!(descriptor["digest"], format!("sha256:{}", sha256(blob)));
                assert_eq!(descriptor["size"], json!(blob.len()));
                seen += 1;
                if descriptor["mediaType"].as_str().unwrap().ends_with("+json") {
                    left.push(serde_json::from_slice(blob).unwrap());
                }
            }
        }
        // The index, two manifests, and of each a configuration and a layer.
        assert_eq!(seen, 7);
        assert_eq!(files.len(), 7 + 2 + 2, "{:?}", files.keys());
    }
}
