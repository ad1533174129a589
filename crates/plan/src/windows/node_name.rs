//! What the Node of a machine is called. A cloud's controllers look for a Node by the name that the cloud has for its
//! machine, and would take away one that is called otherwise; where there is none, a machine is called as it calls itself.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::windows::instances::is_node_name;

/// Where every cloud answers its machines.
pub const METADATA: &str = "http://169.254.169.254";

/// Where a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// On nobody's cloud, or on one that calls machines as they do themselves, as vSphere does.
    Plain,
    /// Amazon: its private DNS name.
    Aws,
    /// Azure: the name of the virtual machine.
    Azure,
    /// Google: the name of the instance.
    Gcp,
}

/// All of them, as people write them.
pub const PLATFORMS: [(&str, Platform); 5] = [
    ("plain", Platform::Plain),
    ("vsphere", Platform::Plain),
    ("aws", Platform::Aws),
    ("azure", Platform::Azure),
    ("gcp", Platform::Gcp),
];

/// What a cloud is asked about the machine that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataRequest {
    /// `GET` or `PUT`.
    pub method: &'static str,
    /// What is asked for.
    pub path: &'static str,
    /// A header, with its value.
    pub header: (&'static str, String),
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = PLATFORMS.iter().find(|(name, _)| *name == text);
        found.map(|(_, platform)| *platform).ok_or_else(|| {
            let all = PLATFORMS.map(|(name, _)| name).join(", ");
            format!("unknown platform {text:?}: use one of {all}")
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = PLATFORMS.iter();
        let (name, _) = all
            .find(|(_, platform)| platform == self)
            .unwrap_or(&PLATFORMS[0]);
        f.write_str(name)
    }
}

impl Platform {
    /// What is asked for first, if the name is told only to whoever has asked for leave.
    pub fn token_request(self) -> Option<MetadataRequest> {
        (self == Self::Aws).then(|| MetadataRequest {
            method: "PUT",
            path: "/latest/api/token",
            header: ("X-aws-ec2-metadata-token-ttl-seconds", "60".to_owned()),
        })
    }

    /// What is asked for the name, with the `token` that was given; nothing if nobody has to be asked.
    pub fn name_request(self, token: &str) -> Option<MetadataRequest> {
        let (path, header, value) = match self {
            Self::Plain => return None,
            Self::Aws => (
                "/latest/meta-data/local-hostname",
                "X-aws-ec2-metadata-token",
                token,
            ),
            Self::Azure => (
                "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
                "Metadata",
                "true",
            ),
            Self::Gcp => (
                "/computeMetadata/v1/instance/name",
                "Metadata-Flavor",
                "Google",
            ),
        };
        Some(MetadataRequest {
            method: "GET",
            path,
            header: (header, value.to_owned()),
        })
    }
}

/// The name of a Node that `said` is: what a machine or its cloud calls it. Amazon says all names of a machine that has
/// more than one, and its own controllers take the first.
pub fn node_name(said: &str) -> Result<String, String> {
    let first = said.split_whitespace().next().unwrap_or_default();
    let name = first.to_lowercase();
    if is_node_name(&name) {
        Ok(name)
    } else {
        Err(format!(
            "{:?} is not a valid name for a Node",
            excerpt(said)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers W02.
    #[test]
    fn a_node_is_called_as_its_cloud_calls_the_machine_or_as_it_does_itself() {
        for (said, name) in [
            ("WIN-1", "win-1"),
            (
                "a-name-that-is-longer-than-netbios",
                "a-name-that-is-longer-than-netbios",
            ),
            ("ip-10-0-0-1.ec2.internal\n", "ip-10-0-0-1.ec2.internal"),
            (
                "ip-10-0-0-1.ec2.internal example.com",
                "ip-10-0-0-1.ec2.internal",
            ),
        ] {
            assert_eq!(node_name(said).as_deref(), Ok(name), "{said:?}");
        }
        for said in [
            "",
            " ",
            "10.0.0.1",
            "win_1",
            "kubernetes",
            "<html>no</html>",
            "a/b",
        ] {
            assert!(node_name(said).is_err(), "{said:?}");
        }
    }

    /// Covers W02.
    #[test]
    fn each_cloud_is_asked_in_its_own_way_and_nobody_where_there_is_none() {
        assert_eq!("vsphere".parse(), Ok(Platform::Plain));
        assert!(
            "openstack"
                .parse::<Platform>()
                .unwrap_err()
                .contains("azure, gcp")
        );
        let asked: Vec<_> = PLATFORMS
            .iter()
            .map(|(name, platform)| {
                let line = |it: MetadataRequest| {
                    let (header, value) = it.header;
                    format!("{} {} {header}: {value}", it.method, it.path)
                };
                let asked = [platform.token_request(), platform.name_request("t")];
                let asked = asked.into_iter().flatten().map(line).collect::<Vec<_>>();
                format!("{name}: {}", asked.join(", then "))
            })
            .collect();
        assert_eq!(
            asked,
            [
                "plain: ",
                "vsphere: ",
                "aws: PUT /latest/api/token X-aws-ec2-metadata-token-ttl-seconds: 60, then GET /latest/meta-data/local-hostname X-aws-ec2-metadata-token: t",
                "azure: GET /metadata/instance/compute/name?api-version=2021-02-01&format=text Metadata: true",
                "gcp: GET /computeMetadata/v1/instance/name Metadata-Flavor: Google",
            ]
        );
    }
}
