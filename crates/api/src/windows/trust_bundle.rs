//! A bundle of trusted certificates: PEM blocks, one after the other, with whatever text between them.
//!
//! It is read block by block: one that is broken is a problem and takes no other with it.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::names::object;
use crate::problem::{Place, Problem, Warning};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
const CERTIFICATE: &str = "CERTIFICATE";

/// What a bundle holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustBundle {
    /// Every block that is a certificate, in the order of the text, each once.
    pub certificates: Vec<Certificate>,
    /// Blocks that are none.
    pub problems: Vec<Problem>,
    /// Certificates that are most likely of no use.
    pub warnings: Vec<Warning>,
}

/// A certificate of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Its encoded form.
    pub der: Vec<u8>,
    /// Whom it names.
    pub subject: String,
}

/// A block, as it stands in the text.
struct Block<'t> {
    /// Which one, from one.
    number: usize,
    line: u32,
    kind: &'t str,
    /// What is between its two lines, or nothing if it has no end.
    body: Option<String>,
}

/// How much text a `ConfigMap` can hold.
pub const MAX_TEXT: usize = 1024 * 1024;

/// A bundle as it stands in a `ConfigMap` that somebody wrote into a file. What of it counts depends on the time, so it
/// is read by whoever has a clock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BundleMap {
    /// What stands under the bundle's key.
    pub text: String,
    /// How much text all keys hold together.
    pub size: usize,
    /// The line of its key.
    pub line: u32,
    /// Whether the text stands in the file below its key, line by line.
    pub(crate) is_block: bool,
}

impl BundleMap {
    /// Reads the bundle, and says what keeps it from being one. One that is empty waits to be filled in, and is
    /// right as it is. `now` is in seconds since 1970.
    pub fn read(&self, file: &str, now: i64) -> TrustBundle {
        let mut bundle = TrustBundle::read(file, &self.text, now);
        let key = object::TRUSTED_CA_FILE;
        let problems = bundle.problems.iter_mut().map(|it| &mut it.place);
        let warnings = bundle.warnings.iter_mut().map(|it| &mut it.place);
        for place in problems.chain(warnings) {
            let inside = place.line.filter(|_| self.is_block).unwrap_or_default();
            place.line = Some(self.line + inside);
            place.path = format!("data.{key}");
        }
        if !self.text.trim().is_empty() {
            bundle.judge(file, self.size);
        }
        bundle
    }
}

impl TrustBundle {
    /// Whether a file is such a bundle, and not an object in which one may stand.
    pub fn is_one(text: &str) -> bool {
        let is_object = |line: &str| {
            let words = ["apiVersion:", "kind:", "ignition:", "{", "["];
            words.iter().any(|it| line.starts_with(it))
        };
        text.lines().any(|line| line.starts_with(BEGIN)) && !text.lines().any(is_object)
    }

    /// Reads a file that is a bundle, and says what keeps it from being published.
    pub fn read_file(file: &str, text: &str, now: i64) -> Self {
        let mut bundle = Self::read(file, text, now);
        bundle.judge(file, text.len());
        bundle
    }

    /// Says what is wrong with all of it, whatever its blocks say: that is its first problem.
    fn judge(&mut self, file: &str, size: usize) {
        let message = if size > MAX_TEXT {
            format!(
                "the bundle has {} KiB, and a ConfigMap holds {} KiB: remove certificates that you do not need",
                size.div_ceil(1024),
                MAX_TEXT / 1024
            )
        } else if self.certificates.is_empty() {
            "the bundle has no readable certificate: nodes would keep the certificates that they have"
                .to_owned()
        } else {
            return;
        };
        let place = Place {
            file: file.to_owned(),
            ..Place::default()
        };
        self.problems.insert(0, Problem { place, message });
    }

    /// Reads `text`, which is called `file` in what is said of it. `now` is in seconds since 1970.
    pub fn read(file: &str, text: &str, now: i64) -> Self {
        let mut bundle = Self::default();
        let mut seen = BTreeSet::new();
        for block in blocks(text) {
            let place = Place {
                file: file.to_owned(),
                line: Some(block.line),
                element: format!("block {}", block.number),
                ..Place::default()
            };
            match certificate(&block, now) {
                Ok((certificate, doubts)) => {
                    let doubts = doubts.into_iter().map(|doubt| Warning {
                        place: Place {
                            identity: certificate.subject.clone(),
                            ..place.clone()
                        },
                        message: doubt.to_owned(),
                    });
                    bundle.warnings.extend(doubts);
                    if seen.insert(certificate.der.clone()) {
                        bundle.certificates.push(certificate);
                    }
                }
                Err(message) => bundle.problems.push(Problem { place, message }),
            }
        }
        bundle
    }
}

/// The blocks of a text, also those that somebody cut.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open: Option<String> = None;
    for (line, said) in (1..).zip(text.lines()) {
        let said = said.trim();
        if let Some(kind) = said.strip_prefix(BEGIN) {
            open = Some(String::new());
            blocks.push(Block {
                number: blocks.len() + 1,
                line,
                kind: kind.trim_end_matches(DASHES),
                body: None,
            });
        } else if said.starts_with(END) {
            if let (Some(body), Some(block)) = (open.take(), blocks.last_mut()) {
                block.body = Some(body);
            }
        } else if let Some(body) = &mut open {
            body.push_str(said);
        }
    }
    blocks
}

/// The certificate of a block and what is doubtful about it, or why it is none. What stands in a block is
/// never repeated: it may be a key.
fn certificate(block: &Block<'_>, now: i64) -> Result<(Certificate, Vec<&'static str>), String> {
    if block.kind != CERTIFICATE {
        return Err(format!(
            "found a {} instead of a certificate: remove it",
            block.kind
        ));
    }
    let Some(body) = &block.body else {
        return Err("the block has no end: add -----END CERTIFICATE----- after it".to_owned());
    };
    let der = STANDARD
        .decode(body)
        .map_err(|error| format!("not valid base64 ({error}): copy the certificate again"))?;
    let (rest, read) = X509Certificate::from_der(&der)
        .map_err(|_| "not an X.509 certificate: copy the certificate again".to_owned())?;
    if !rest.is_empty() {
        return Err("more than one certificate in a block: copy the certificate again".to_owned());
    }
    let mut doubts = Vec::new();
    let validity = read.validity();
    if validity.not_after.timestamp() < now {
        doubts.push("the certificate has expired");
    }
    if validity.not_before.timestamp() > now {
        doubts.push("the certificate is not valid yet");
    }
    if !read.is_ca() {
        doubts.push("not a CA certificate: it verifies only itself");
    }
    let subject = read.subject().to_string();
    Ok((Certificate { der, subject }, doubts))
}
