use super::*;

const OURS: &str = "system:serviceaccount:evenkeel:evenkeel-agent";

/// `win-1` is being configured, `win-2` is a node of ours, `linux-1` and `foreign` are nodes of others.
struct Cluster {
    node_exists: bool,
    is_managed: bool,
    has_bootstrapper: bool,
}

/// Services of a cluster, and its API server.
fn reserved() -> Reserved {
    let mut reserved = Reserved::default();
    for (namespace, name, address) in [
        ("default", "kubernetes", "10.96.0.1"),
        ("shop", "web", "10.96.0.10"),
        ("shop", "headless", "None"),
    ] {
        reserved.service(namespace, name, [address].into_iter());
    }
    for url in [
        "https://API.example.com:6443",
        "https://[2001:db8::6]:6443/",
    ] {
        reserved.api_server(url);
    }
    reserved
}

const CLUSTER: Cluster = Cluster {
    node_exists: false,
    is_managed: true,
    has_bootstrapper: true,
};

fn words(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&it| it.to_owned()).collect()
}

impl CertificateContext for Cluster {
    fn namespace(&self) -> &'static str {
        "evenkeel"
    }
    fn bootstrapper(&self) -> Option<Identity> {
        self.has_bootstrapper.then(|| Identity {
            user: "system:bootstrap:abcdef".to_owned(),
            groups: words(&["system:bootstrappers", AUTHENTICATED]),
        })
    }
    fn is_configured_now(&self, node: &str) -> bool {
        node == "win-1"
    }
    fn credential(&self, node: &str) -> Option<String> {
        (node == "win-1").then(|| "JTI=1".to_owned())
    }
    fn node(&self, name: &str) -> Option<KnownNode> {
        let known = |is_managed, addresses: &[&str]| {
            let addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
            let names = vec!["win-2.internal".to_owned(), "linux-1".to_owned()];
            Some(KnownNode {
                is_managed,
                addresses,
                names,
            })
        };
        match name {
            "win-1" if self.node_exists => known(self.is_managed, &["10.0.0.1"]),
            // A Machine controller may be wrong, too.
            "win-2" => known(true, &["10.0.0.2", "10.0.0.9", "10.96.0.10"]),
            "linux-1" | "foreign" => known(false, &[]),
            _ => None,
        }
    }
    fn owner(&self, address: &str, node: &str) -> Option<String> {
        match address {
            "10.0.0.2" | "win-2" if node != "win-2" => Some("Node win-2".to_owned()),
            "10.0.0.9" => Some("Node win-3".to_owned()),
            "linux-1" if node != "linux-1" => Some("Node linux-1".to_owned()),
            _ => reserved().owner(address),
        }
    }
}

fn subject(name: &str, organisation: &str) -> Subject {
    Subject {
        common_names: vec![name.to_owned()],
        organisations: vec![organisation.to_owned()],
        ..Subject::default()
    }
}

fn first_kubelet() -> SigningRequest {
    SigningRequest {
        signer: certificate::KUBELET_CLIENT.to_owned(),
        user: "system:bootstrap:abcdef".to_owned(),
        groups: words(&["system:bootstrappers", AUTHENTICATED]),
        credential: None,
        usages: words(&["digital signature", "client auth"]),
        subject: Ok(subject("system:node:win-1", NODES)),
    }
}

fn first_agent() -> SigningRequest {
    SigningRequest {
        signer: certificate::CLIENT.to_owned(),
        user: OURS.to_owned(),
        groups: words(&[
            "system:serviceaccounts",
            "system:serviceaccounts:evenkeel",
            AUTHENTICATED,
        ]),
        credential: Some("JTI=1".to_owned()),
        usages: words(&["digital signature", "client auth"]),
        subject: Ok(subject("evenkeel:agent:win-1", AGENT_GROUP)),
    }
}

fn next_agent() -> SigningRequest {
    SigningRequest {
        user: "evenkeel:agent:win-2".to_owned(),
        groups: words(&[AGENT_GROUP, AUTHENTICATED]),
        credential: None,
        subject: Ok(subject("evenkeel:agent:win-2", AGENT_GROUP)),
        ..first_agent()
    }
}

fn serving() -> SigningRequest {
    let subject = Ok(Subject {
        dns: vec!["WIN-2".to_owned()],
        addresses: vec!["10.0.0.2".parse().unwrap()],
        ..subject("system:node:win-2", NODES)
    });
    SigningRequest {
        signer: certificate::KUBELET_SERVING.to_owned(),
        user: "system:node:win-2".to_owned(),
        groups: words(&[NODES, AUTHENTICATED]),
        credential: None,
        usages: words(&["digital signature", "server auth"]),
        subject,
    }
}

fn renewing_kubelet() -> SigningRequest {
    SigningRequest {
        signer: certificate::KUBELET_CLIENT.to_owned(),
        usages: words(&["digital signature", "client auth"]),
        subject: Ok(subject("system:node:win-2", NODES)),
        ..serving()
    }
}

#[test]
fn what_is_exactly_right_is_approved() {
    for request in [
        first_kubelet(),
        first_agent(),
        next_agent(),
        serving(),
        renewing_kubelet(),
    ] {
        let verdict = decide(&request, &CLUSTER);
        assert!(
            matches!(verdict, Approval::Approve(_)),
            "{verdict:?}: {request:?}"
        );
        let mut request = request;
        request.usages.insert("key encipherment".to_owned());
        assert!(matches!(decide(&request, &CLUSTER), Approval::Approve(_)));
    }
}

type Change = fn(&mut SigningRequest);

/// One word too many, one too few, or another: every kind of it, on every kind of request.
#[test]
fn no_request_with_one_wrong_word_is_approved() {
    fn of(request: &mut SigningRequest) -> &mut Subject {
        request.subject.as_mut().unwrap()
    }
    let changes: [(&str, Change); 18] = [
        ("another organisation", |it| {
            of(it).organisations = vec!["system:masters".to_owned()];
        }),
        ("an organisation more", |it| {
            of(it).organisations.push("system:masters".to_owned());
        }),
        ("no organisation", |it| of(it).organisations.clear()),
        ("a common name more", |it| {
            of(it).common_names.push("system:admin".to_owned());
        }),
        ("another common name", |it| {
            of(it).common_names = vec!["system:admin".to_owned()];
        }),
        ("the name of another node", |it| {
            for name in &mut of(it).common_names {
                *name = name.replace("win-1", "linux-1").replace("win-2", "linux-1");
            }
        }),
        ("another usage", |it| {
            it.usages = words(&["digital signature", "code signing"]);
        }),
        ("a usage more", |it| {
            it.usages.insert("cert sign".to_owned());
        }),
        ("no usage", |it| it.usages.clear()),
        ("an address of another node", |it| {
            of(it).addresses.push("10.0.0.3".parse().unwrap());
        }),
        ("a name of nobody", |it| {
            of(it).dns.push("kubernetes.default.svc".to_owned());
        }),
        ("an address that two machines are listed at", |it| {
            of(it).addresses.push("10.0.0.9".parse().unwrap());
        }),
        ("an address of a Service", |it| {
            of(it).addresses.push("10.96.0.10".parse().unwrap());
        }),
        ("the name of another Node", |it| {
            of(it).dns.push("linux-1".to_owned());
        }),
        ("an e-mail address", |it| {
            of(it).others.push("the e-mail address a@b".to_owned());
        }),
        ("a group more", |it| {
            it.groups.insert("system:masters".to_owned());
        }),
        ("a user of no such name", |it| it.user = "eve".to_owned()),
        ("what cannot be read", |it| {
            it.subject = Err("it cannot be read".to_owned());
        }),
    ];
    for request in [
        first_kubelet(),
        first_agent(),
        next_agent(),
        serving(),
        renewing_kubelet(),
    ] {
        for (what, change) in changes {
            let mut forged = request.clone();
            change(&mut forged);
            let verdict = decide(&forged, &CLUSTER);
            assert!(
                !matches!(verdict, Approval::Approve(_)),
                "{what}: {forged:?}"
            );
        }
        for signer in [
            certificate::CLIENT,
            certificate::KUBELET_CLIENT,
            certificate::KUBELET_SERVING,
            "example.com/signer",
        ] {
            let mut forged = request.clone();
            signer.clone_into(&mut forged.signer);
            let verdict = decide(&forged, &CLUSTER);
            let may = signer == request.signer;
            assert_eq!(matches!(verdict, Approval::Approve(_)), may, "{forged:?}");
        }
    }
}

#[test]
fn a_first_certificate_is_for_machines_that_are_being_configured_only() {
    let exists = Cluster {
        node_exists: true,
        ..CLUSTER
    };
    let Approval::Deny(why) = decide(&first_kubelet(), &exists) else {
        panic!("a second kubelet")
    };
    assert!(why.contains("exists already"), "{why}");
    let unknown = Cluster {
        has_bootstrapper: false,
        ..CLUSTER
    };
    assert_eq!(decide(&first_kubelet(), &unknown), Approval::Leave);
    let mut other = first_kubelet();
    other.subject = Ok(subject("system:node:linux-2", NODES));
    assert_eq!(
        decide(&other, &CLUSTER),
        Approval::Leave,
        "somebody else's node"
    );

    // The login of another machine's turn, or of an agent's pod.
    for credential in [None, Some("JTI=2".to_owned())] {
        let forged = SigningRequest {
            credential,
            ..first_agent()
        };
        assert!(matches!(decide(&forged, &CLUSTER), Approval::Deny(_)));
    }
    let mut late = first_agent();
    late.subject = Ok(subject("evenkeel:agent:win-2", AGENT_GROUP));
    assert!(
        matches!(decide(&late, &CLUSTER), Approval::Deny(_)),
        "it has one"
    );
}

#[test]
fn nodes_of_others_are_left_alone() {
    for node in ["linux-1", "foreign", "nowhere"] {
        let user = format!("system:node:{node}");
        let request = SigningRequest {
            subject: Ok(subject(&user, NODES)),
            user: user.clone(),
            ..serving()
        };
        assert_eq!(decide(&request, &CLUSTER), Approval::Leave);
        let request = SigningRequest {
            signer: certificate::KUBELET_CLIENT.to_owned(),
            ..request
        };
        assert_eq!(decide(&request, &CLUSTER), Approval::Leave);
        let user = format!("evenkeel:agent:{node}");
        let request = SigningRequest {
            subject: Ok(subject(&user, AGENT_GROUP)),
            user,
            ..next_agent()
        };
        assert_eq!(decide(&request, &CLUSTER), Approval::Leave);
    }
}

/// Covers S01.
#[test]
fn an_agent_gets_no_certificate_for_a_node_that_somebody_else_has_made() {
    let mut cluster = Cluster {
        node_exists: true,
        ..CLUSTER
    };
    let verdict = decide(&first_agent(), &cluster);
    assert!(matches!(verdict, Approval::Approve(_)), "{verdict:?}");
    cluster.is_managed = false;
    let Approval::Deny(why) = decide(&first_agent(), &cluster) else {
        panic!("an agent of a Node of others")
    };
    assert!(why.contains("win-1"), "{why}");
}

/// Covers S02.
#[test]
fn a_server_is_for_where_its_machine_is_listed_and_for_its_own_names() {
    let ask = |dns: &[&str], addresses: &[&str]| {
        let mut request = serving();
        let subject = request.subject.as_mut().unwrap();
        subject.dns = dns.iter().map(|&it| it.to_owned()).collect();
        subject.addresses = addresses.iter().map(|it| it.parse().unwrap()).collect();
        decide(&request, &CLUSTER)
    };
    for (dns, addresses) in [
        (&["win-2"][..], &["10.0.0.2"][..]),
        (&["Win-2.Internal"], &[]),
        (&[], &["10.0.0.2"]),
    ] {
        let verdict = ask(dns, addresses);
        assert!(matches!(verdict, Approval::Approve(_)), "{verdict:?}");
    }
    for (name, words) in [
        ("10.0.0.7", "nodeAddress=10.0.0.7"),
        ("10.0.0.9", "belongs to Node win-3"),
        ("10.96.0.10", "Service shop/web"),
        ("kubernetes.default.svc", "is not a name of Node"),
        ("web", "is not a name of Node"),
        ("linux-1", "belongs to Node linux-1"),
        ("*.win-2", "is not a name of Node"),
    ] {
        let verdict = match name.parse::<IpAddr>() {
            Ok(_) => ask(&["win-2"], &["10.0.0.2", name]),
            Err(_) => ask(&["win-2", name], &["10.0.0.2"]),
        };
        let Approval::Deny(why) = verdict else {
            panic!("{name}: {verdict:?}")
        };
        assert!(why.contains(words), "{name}: {why}");
    }
}

/// Covers S02.
#[test]
fn a_service_and_the_api_server_are_known_however_they_are_called() {
    let reserved = reserved();
    for (name, owner) in [
        ("web", "Service shop/web"),
        ("web.shop", "Service shop/web"),
        ("web.shop.svc", "Service shop/web"),
        ("web.shop.svc.cluster.local", "Service shop/web"),
        ("headless.shop.svc.example.org", "Service shop/headless"),
        ("10.96.0.1", "Service default/kubernetes"),
        ("kubernetes", "Service default/kubernetes"),
        ("api.example.com", "the API server"),
        ("2001:db8:0::6", "the API server"),
    ] {
        assert_eq!(reserved.owner(name).as_deref(), Some(owner), "{name}");
    }
    for name in ["web.example.com", "win-2", "web.other", "10.0.0.2", "shop"] {
        assert_eq!(reserved.owner(name), None, "{name}");
    }
}
