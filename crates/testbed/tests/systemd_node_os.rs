//! The stand-ins for rpm-ostree and bootc on a node: they keep state, and check what they are told.
#![cfg(target_os = "linux")]

use evenkeel_testbed::{Result, SystemdNode, need};

#[test]
fn what_is_staged_comes_with_an_orderly_reboot_and_is_lost_with_the_power() -> Result<()> {
    if need::skip(SystemdNode::NEEDS)? {
        return Ok(());
    }
    let mut node = SystemdNode::boot("os-double")?;
    node.install_os(
        &["rpm-ostree", "bootc", "ostree"],
        "os:1",
        &["root=/dev/x", "a=1"],
    )?;
    let cmdline = |node: &SystemdNode| node.run(&["cat", "/proc/cmdline"]);
    assert!(cmdline(&node)?.contains(" root=/dev/x a=1 "));
    node.run(&["rpm-ostree", "rebase", "ostree-unverified-registry:os:2"])?;
    node.run(&[
        "rpm-ostree",
        "kargs",
        "--delete=a=1",
        "--append=b",
        "--append=b",
    ])?;
    assert!(
        node.run(&["bootc", "status", "--format", "json"])?
            .contains("\"os:2\"")
    );
    for refused in [
        &["rpm-ostree", "rebase", "ostree-unverified-registry:os:2"][..],
        &["rpm-ostree", "rebase", "os:3"],
        &[
            "rpm-ostree",
            "rebase",
            "ostree-unverified-registry:docker://os:3",
        ],
        &["rpm-ostree", "kargs", "--delete=a=1"],
        &["rpm-ostree", "kargs", "--wish=b"],
        &["rpm-ostree", "upgrade"],
        &["bootc", "switch"],
    ] {
        assert!(node.run(refused).is_err(), "{refused:?}");
    }
    node.cut()?;
    node.boot_again()?;
    assert!(cmdline(&node)?.contains(" root=/dev/x a=1 "));
    node.run(&["bootc", "switch", "--", "os:3"])?;
    node.run(&["rpm-ostree", "kargs", "--append=b"])?;
    node.reboot()?;
    assert!(cmdline(&node)?.contains(" root=/dev/x a=1 b "));
    let status = node.run(&["rpm-ostree", "status", "--json"])?;
    assert!(status.contains(r#""booted":true,"staged":false,"container-image-reference":"ostree-unverified-registry:os:3""#), "{status}");
    node.run(&["bootc", "switch", "--", "os:4"])?;
    node.run(&["ostree", "admin", "undeploy", "0"])?;
    node.boot_stubbornly(true)?;
    node.reboot()?;
    assert!(
        node.run(&["bootc", "status", "--format", "json"])?
            .contains("\"booted\":{\"image\":{\"image\":{\"image\":\"os:1\"")
    );
    node.fail_os(&["rpm-ostree status"])?;
    let failed = node.run(&["rpm-ostree", "status", "--json"]).unwrap_err();
    assert!(failed.to_string().contains("told to fail"), "{failed}");
    assert!(
        node.os_calls()?
            .contains(&"bootc switch -- os:3".to_owned())
    );
    Ok(())
}
