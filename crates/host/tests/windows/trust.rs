//! The trust store: what is ours comes and goes, what was there before us stays.

use evenkeel_host::windows::trust::{roots, sync};
use evenkeel_plan::machine::entry::Hash;

fn certificate(name: &str) -> Vec<u8> {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    parameters.self_signed(&key).unwrap().der().to_vec()
}

#[test]
fn ours_are_exactly_those_that_were_given_and_theirs_stay() {
    let strangers = roots().unwrap();
    let (one, two) = (certificate("one.example"), certificate("two.example"));
    let (first, second) = (Hash::of(&one), Hash::of(&two));
    let ours = || -> Vec<Hash> {
        let all = roots().unwrap().into_iter();
        all.filter(|root| root.is_our_root)
            .map(|root| root.fingerprint)
            .collect()
    };
    let synced = sync(&[&one, &two, &one]).unwrap();
    assert_eq!(synced.added, [first, second]);
    let mut both = vec![first, second];
    both.sort();
    assert_eq!(ours(), both);
    assert_eq!(sync(&[&one, &two]).unwrap().added, []);
    let synced = sync(&[&one]).unwrap();
    assert_eq!((synced.added, synced.removed), (vec![], vec![second]));
    assert_eq!(ours(), [first]);
    assert_eq!(sync(&[]).unwrap().removed, [first]);
    assert_eq!(roots().unwrap(), strangers);
    let synced = sync(&[b"no certificate", &one]).unwrap();
    assert_eq!((synced.added, synced.refused.len()), (vec![first], 1));
    assert_eq!(sync(&[]).unwrap().removed, [first]);
}
