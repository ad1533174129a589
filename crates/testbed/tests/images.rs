//! Which images the chart runs, and as whom. `cargo xtask release` makes them.

#![cfg(target_os = "linux")]

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::{Result, need};

/// Every pod of the chart, with the program that its image is of.
const PODS: [(&str, &str, &str); 3] = [
    ("Deployment", "evenkeel-operator", "operator"),
    ("DaemonSet", "evenkeel-agent", "agent"),
    ("Job", "evenkeel-uninstall", "operator"),
];

#[test]
fn the_chart_runs_the_images_as_who_they_are() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let chart = Chart::render("evenkeel", &[])?;
    for (kind, name, program) in PODS {
        let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let image = format!("evenkeel-{program}:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(container["image"], image);
        assert!(
            container["command"].is_null(),
            "the image's own entry point"
        );
        if program == "operator" {
            // Its user is a number, by which a kubelet sees that it is not root.
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
            assert!(pod["securityContext"]["runAsUser"].is_null());
        }
    }
    let version = chart.object("Deployment", "evenkeel-operator")?;
    let version = &version["metadata"]["labels"]["app.kubernetes.io/version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"), "one version for all");
    Ok(())
}

#[test]
fn an_image_is_named_by_registry_and_digest_where_they_are_given() -> Result<()> {
    if need::skip(Chart::NEEDS)? {
        return Ok(());
    }
    let digest = format!("sha256:{:064}", 7);
    let of_operator = format!("--set=image.digests.operator={digest}");
    let own = "--set=image.registry=own.example.com/evenkeel";
    let everybodys = "--set=global.imageRegistry=all.example.com";
    let tag = "--set=image.tag=1.2.3";
    for (options, operator, agent) in [
        (
            vec![own, tag],
            "own.example.com/evenkeel/evenkeel-operator:1.2.3".to_owned(),
            "own.example.com/evenkeel/evenkeel-agent:1.2.3",
        ),
        (
            vec![own, everybodys, tag, &of_operator],
            format!("all.example.com/evenkeel-operator@{digest}"),
            "all.example.com/evenkeel-agent:1.2.3",
        ),
    ] {
        let chart = Chart::render("evenkeel", &options)?;
        for (kind, name, program) in PODS {
            let pod = &chart.object(kind, name)?["spec"]["template"]["spec"];
            let expected = match program {
                "operator" => operator.as_str(),
                _ => agent,
            };
            assert_eq!(pod["containers"][0]["image"], expected, "{name}");
        }
    }
    Ok(())
}
