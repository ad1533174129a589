use proptest::prelude::*;

use super::*;

fn settings(all: &[(Variable, &str)]) -> ProxySettings {
    all.iter().copied().collect()
}

fn said<'a>(
    environment: &'a ProxySettings,
    cluster: &'a ProxySettings,
    chart: &'a ProxySettings,
) -> ProxySources<'a> {
    ProxySources {
        environment,
        cluster: Some(cluster),
        chart,
    }
}

use Variable::{HttpProxy, HttpsProxy, NoProxy};

/// Covers P01.
#[test]
fn the_first_source_that_names_a_proxy_is_believed_whole() {
    let none = ProxySettings::default();
    let of = |host: &str| settings(&[(HttpProxy, &format!("http://{host}:3128")), (NoProxy, host)]);
    let (environment, cluster, chart) = (of("e"), of("c"), of("h"));
    let decided = |a: &ProxySettings, b: &ProxySettings, c: &ProxySettings| {
        let decision = decide(said(a, b, c), &none).unwrap();
        assert_eq!((decision.problems.len(), decision.warnings.len()), (0, 0));
        (decision.source, decision.settings)
    };
    let all = decided(&environment, &cluster, &chart);
    assert_eq!(all, (Some(Source::Environment), environment.clone()));
    let two = decided(&none, &cluster, &chart);
    assert_eq!(two, (Some(Source::Cluster), cluster.clone()));
    let last = decided(&none, &none, &chart);
    assert_eq!(last, (Some(Source::Chart), chart.clone()));
    assert_eq!(decided(&none, &none, &none), (None, none.clone()));
    // Exceptions alone are no proxy, and an empty value is none.
    let alone = settings(&[(NoProxy, "x"), (HttpsProxy, " ")]);
    assert_eq!(decided(&alone, &none, &none), (None, none.clone()));
    assert_eq!(decided(&alone, &cluster, &none).0, Some(Source::Cluster));
    // Nobody decides without having asked.
    let unheard = ProxySources {
        environment: &none,
        cluster: None,
        chart: &chart,
    };
    assert_eq!(decide(unheard, &none), None);
    let needless = ProxySources {
        environment: &environment,
        ..unheard
    };
    assert!(decide(needless, &none).is_some());
}

/// Covers P03.
#[test]
fn a_value_that_will_not_do_keeps_the_last_good_one_and_takes_no_other_with_it() {
    let none = ProxySettings::default();
    let last = settings(&[(HttpProxy, "http://old:1"), (HttpsProxy, "http://old:2")]);
    let given = settings(&[
        (HttpProxy, "htp://new:1"),
        (HttpsProxy, "https://new:2"),
        (NoProxy, "a b"),
    ]);
    let decision = decide(said(&none, &given, &none), &last).unwrap();
    let expected = settings(&[
        (HttpProxy, "http://old:1"),
        (HttpsProxy, "https://new:2"),
        (NoProxy, "a b"),
    ]);
    assert_eq!(decision.settings, expected);
    let note = &decision.problems[0].note;
    assert!(
        note.starts_with("status.httpProxy of the cluster's Proxy cluster: its scheme is neither")
            && note.ends_with("keep the last good value"),
        "{note}"
    );
    assert!(decision.warnings[0].note.contains("entry 1 has a space"));
    // Without one, there is none; and what was good before is not kept where it is not wanted.
    let decision = decide(said(&given, &none, &none), &none).unwrap();
    assert_eq!(decision.settings.get(HttpProxy), None);
    assert!(
        decision.problems[0]
            .note
            .contains("have no proxy until then")
    );
    let decision = decide(said(&none, &none, &none), &last).unwrap();
    assert_eq!(decision.settings, none);
}

#[test]
fn what_is_wrong_with_a_value_is_named_without_the_value() {
    for (value, why) in [
        ("proxy:3128", "it has no scheme"),
        ("user:secret@proxy:3128", "it has no scheme"),
        ("htp://proxy:3128", "neither http nor https"),
        ("socks5://proxy:1080", "neither http nor https"),
        ("http://", "it has no host"),
        ("http://:3128", "it has no host"),
        ("http://user:secret@:3128", "it has no host"),
        ("http://user:secret@/", "it has no host"),
        ("http://@proxy:3128", "no user before its @"),
        ("http://:secret@proxy", "no user before its @"),
        ("http://user:sec@ret@proxy", "reserved character"),
        ("http://user:sec/ret@proxy", "reserved character"),
        ("http://user:sec#ret@proxy", "reserved character"),
        ("http://user:sec?ret@proxy", "reserved character"),
        ("http://user:sec%ret@proxy", "reserved character"),
        ("http://user:secret%@proxy", "reserved character"),
        ("http://user:sécret@proxy", "reserved character"),
        ("http://user:sec\\ret@proxy", "reserved character"),
        ("http://user:sec ret@proxy", "space or a line break"),
        ("http://proxy:3128\n", "space or a line break"),
        ("http://proxy:port", "its port is not a number"),
        ("http://proxy:", "its port is not a number"),
        ("http://proxy:0", "its port is not a number"),
        ("http://proxy:65536", "its port is not a number"),
        ("http://proxy:+80", "its port is not a number"),
        ("http://[::1:3128", "no closing bracket"),
        ("http://[proxy]:3128", "no IPv6 address"),
        ("http://[::1]3128", "between its host and its port"),
        (
            "http://pro|xy:3128",
            "character that is not valid in a name",
        ),
        ("http://pro\0xy:3128", "NUL"),
    ] {
        let said = judge::judge(HttpProxy, value).unwrap_err();
        assert!(said.contains(why), "{value}: {said}");
        assert!(!said.contains("secret") && !said.contains("ret@"), "{said}");
    }
    for value in [
        "http://proxy",
        "http://proxy/",
        "HTTPS://proxy.example.com:3128",
        "http://10.0.0.1:3128",
        "http://[fd00::1]:3128/",
        "http://user@proxy:3128",
        "http://user:p%40ss%2Fw!$&'()*+,;=:rd@proxy_1:3128",
    ] {
        assert_eq!(judge::judge(HttpsProxy, value), Ok(Vec::new()), "{value}");
    }
    let odd = judge::judge(HttpProxy, "http://proxy:3128/path").unwrap();
    assert!(odd[0].contains("after host and port"), "{odd:?}");
}

#[test]
fn odd_exceptions_are_passed_on_and_named_by_number() {
    let odd = |value: &str| judge::judge(NoProxy, value).unwrap();
    assert_eq!(odd(".svc,10.0.0.0/8,localhost,*"), Vec::<String>::new());
    let all = odd("a, b,c\nd,,http://e,f;g,h");
    let numbers: Vec<_> = all.iter().map(|it| &it[..7]).collect();
    let expected = ["entry 2", "entry 3", "entry 4", "entry 5", "entry 6"];
    assert_eq!(numbers, expected, "{all:?}");
    assert!(judge::judge(NoProxy, &"x,".repeat(20_000)).is_err());
    assert_eq!(shown("a\nb"), "a b", "a log has one line for it");
}

#[test]
fn what_was_given_last_stands_in_the_config_map_of_the_newest_version() {
    let of = |host: &str| settings(&[(HttpProxy, &format!("http://{host}"))]);
    let (old, newer) = (of("old"), of("newer"));
    let maps = [
        ("services-1-10-0-abc1234", &newer),
        ("services-1-9-0-abc1234", &old),
        ("services-of-somebody", &old),
    ];
    assert_eq!(last_given(maps), newer);
    assert_eq!(last_given([]), ProxySettings::default());
}

proptest! {
    /// Whatever is written, the words about it and the value as people see it hold no password.
    #[test]
    fn a_password_is_in_no_word_that_is_said(
        scheme in "(https?://|htp://|)",
        user in "[a-z]{0,3}",
        noise in "[@/?#%: \\\\a-z]{0,6}",
        host in "[a-z.\\[]{0,5}(:[0-9a-z]{0,5})?",
    ) {
        let value = format!("{scheme}{user}:QXZ{noise}ZXQ@{host}");
        let given = settings(&[(HttpProxy, &value), (HttpsProxy, &value)]);
        let none = ProxySettings::default();
        let decision = decide(said(&none, &none, &given), &none).unwrap();
        let shown = format!("{decision:?} {given} {given:?} {}", shown(&value));
        prop_assert!(!shown.contains("QXZ") && !shown.contains("ZXQ"), "{shown}");
    }

    /// A source that names a proxy never leaves nodes with less than they had, and what is good is not touched.
    #[test]
    fn an_invalid_value_is_never_taken_for_none(
        http in "(http://[a-z]{1,5}:[1-9][0-9]{0,3}|[a-z:/@]{1,8})",
        https in "(http://[a-z]{1,5}:[1-9][0-9]{0,3}|[a-z:/@]{1,8})",
    ) {
        let last = settings(&[(HttpProxy, "http://old:1"), (HttpsProxy, "http://old:2")]);
        let given = settings(&[(HttpProxy, &http), (HttpsProxy, &https)]);
        let none = ProxySettings::default();
        let decision = decide(said(&given, &none, &none), &last).unwrap();
        for (name, value) in [(HttpProxy, &http), (HttpsProxy, &https)] {
            let is_good = judge::judge(name, value).is_ok();
            let expected = if is_good { value.as_str() } else { last.get(name).unwrap() };
            prop_assert_eq!(decision.settings.get(name), Some(expected));
            prop_assert_eq!(decision.problems.iter().any(|it| it.variable == name), !is_good);
        }
        // Asked again with what was decided, it is the same.
        prop_assert_eq!(decide(said(&given, &none, &none), &decision.settings), Some(decision));
    }
}
