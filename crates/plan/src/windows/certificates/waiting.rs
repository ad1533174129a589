//! Requests without an answer: only those that could be ours, and a few of each who asks. Everybody with a login may make
//! requests, as many and as large as the API server takes.

use std::collections::BTreeMap;

use evenkeel_api::names::certificate;

use super::SigningRequest;

/// The largest request that is read, in bytes: one with a dozen addresses has two thousand.
pub const LARGEST: usize = 16 * 1024;
/// How many of one node wait at once. The newest count: who asks again has given up what it asked before.
const OF_A_NODE: usize = 8;
/// The same for whoever else asks: machines that are being configured ask in one name.
const OF_ANYBODY: usize = 256;

/// Whether an answer to such a request could be ours to give.
pub fn could_be_ours(signer: &str, size: usize) -> bool {
    let signers = [
        certificate::KUBELET_CLIENT,
        certificate::KUBELET_SERVING,
        certificate::CLIENT,
    ];
    signers.contains(&signer) && size <= LARGEST
}

/// Requests without an answer, by name, with the version they were seen at.
#[derive(Debug, Default)]
pub struct PendingRequests {
    kept: BTreeMap<String, Kept>,
    next: u64,
}

#[derive(Debug)]
struct Kept {
    version: String,
    request: SigningRequest,
    /// Which one it was.
    number: u64,
}

impl PendingRequests {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Keeps one, in the place of the oldest of who asks if those are too many.
    pub fn insert(&mut self, name: String, version: String, request: SigningRequest) {
        let is_node = ["system:node:", "evenkeel:agent:"]
            .iter()
            .any(|it| request.user.starts_with(it));
        let most = if is_node { OF_A_NODE } else { OF_ANYBODY };
        let others: Vec<(u64, &String)> = self
            .kept
            .iter()
            .filter(|(it, kept)| **it != name && kept.request.user == request.user)
            .map(|(it, kept)| (kept.number, it))
            .collect();
        if others.len() >= most
            && let Some((_, oldest)) = others.into_iter().min()
        {
            let oldest = oldest.clone();
            self.kept.remove(&oldest);
        }
        let number = self.next;
        self.next += 1;
        let kept = Kept {
            version,
            request,
            number,
        };
        self.kept.insert(name, kept);
    }

    /// Forgets one, and says who asked.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.kept.remove(name).map(|it| it.request.user)
    }

    /// All of them: name, version, and what is asked for.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &SigningRequest)> {
        self.kept
            .iter()
            .map(|(name, it)| (name.as_str(), it.version.as_str(), &it.request))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn asked(user: &str) -> SigningRequest {
        SigningRequest {
            signer: certificate::KUBELET_SERVING.to_owned(),
            user: user.to_owned(),
            groups: BTreeSet::new(),
            credential: None,
            usages: BTreeSet::new(),
            subject: Err("not read".to_owned()),
        }
    }

    /// Covers S06.
    #[test]
    fn who_asks_for_too_much_pushes_out_nobody_but_itself() {
        let mut waiting = PendingRequests::default();
        waiting.insert("honest".to_owned(), "1".to_owned(), asked("system:node:a"));
        for number in 0..1000 {
            let name = format!("liar-{number}");
            waiting.insert(name, "1".to_owned(), asked("system:node:b"));
        }
        let names: Vec<_> = waiting.iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), 1 + OF_A_NODE);
        assert!(names.contains(&"honest") && names.contains(&"liar-999"));
        // The same one at another version is no other one.
        waiting.insert("honest".to_owned(), "2".to_owned(), asked("system:node:a"));
        assert_eq!(waiting.iter().count(), 1 + OF_A_NODE);
        assert_eq!(waiting.remove("honest").as_deref(), Some("system:node:a"));
        for number in 0..1000 {
            let name = format!("first-{number}");
            waiting.insert(name, "1".to_owned(), asked("system:serviceaccount:x:y"));
        }
        assert_eq!(waiting.iter().count(), OF_A_NODE + OF_ANYBODY);
    }

    #[test]
    fn what_is_not_ours_to_decide_is_not_kept() {
        assert!(could_be_ours(certificate::KUBELET_SERVING, 2000));
        assert!(!could_be_ours(certificate::KUBELET_SERVING, LARGEST + 1));
        assert!(!could_be_ours("example.com/mine", 2000));
    }
}
