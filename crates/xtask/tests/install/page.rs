//! docs/install.md, done as it is written, from top to bottom: on a real cluster, with the commands of the page, the files
//! that it says to save, and what it says they print.

mod console;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use evenkeel_testbed::chart::Chart;
use evenkeel_testbed::cluster::Cluster;
use evenkeel_testbed::process::output;
use evenkeel_testbed::scratch::Scratch;
use evenkeel_testbed::{Doing, Error, Result};

use self::console::{Page, Step, Who, missing};
use crate::release::Release;
use crate::skip;

/// In seconds, how long one command may take: the longest watches two nodes reboot, on a machine that is busy.
const COMMAND: &str = "900";
/// What somebody sees who looks for what is to be done.
const SOMETHING_TO_DO: i32 = 2;

fn page() -> Result<Page> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/install.md");
    let text =
        std::fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    Page::read(&text)
}

/// Somebody who reads the page, with a home of their own, beside a release and with a login to the cluster.
struct Person<'a> {
    cluster: &'a Cluster,
    nodes: usize,
    home: Scratch,
    path: String,
}

impl<'a> Person<'a> {
    fn at(cluster: &'a Cluster, nodes: usize, release: &Release) -> Result<Self> {
        let home = Scratch::new("person")?;
        let programs = home.path().join("programs");
        std::fs::create_dir(&programs).doing(|| "cannot make a folder")?;
        let control_plane = cluster.control_plane();
        for (name, program) in [
            ("helm", Chart::helm_program()?),
            ("kubectl", control_plane.kubectl_program()),
        ] {
            std::os::unix::fs::symlink(&program, programs.join(name))
                .doing(|| format!("cannot link {name}"))?;
        }
        let folder = release.folder().canonicalize();
        let folder = folder.doing(|| format!("no {}", release.folder().display()))?;
        std::os::unix::fs::symlink(folder, home.path().join("release"))
            .doing(|| "cannot link the release")?;
        let login = home.path().join("kubeconfig");
        control_plane.admin_kubeconfig().write(&login)?;
        let own = home.path().join(".local/bin");
        Ok(Self {
            cluster,
            nodes,
            path: format!("{}:{}:/usr/bin:/bin", own.display(), programs.display()),
            home,
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Types a command into a shell in that home.
    fn types(&self, command: &str) -> Result<Output> {
        output(
            Command::new("timeout")
                .args([COMMAND, "bash", "-o", "pipefail", "-c", command])
                .current_dir(self.home.path())
                .env_clear()
                .env("HOME", self.home.path())
                .env("KUBECONFIG", self.file("kubeconfig"))
                .env("LANG", "C.UTF-8")
                .env("PATH", &self.path),
            &[],
        )
    }

    /// Types it as root on a node, at home.
    fn types_on(&self, node: usize, command: &str) -> Result<Output> {
        let mut on = self.cluster.node(node).command()?;
        // Its containers lie on a file system that containerd's usual way does not work on.
        on.env("CONTAINERD_SNAPSHOTTER", "native");
        on.args(["sh", "-c", &format!("cd && {command}")]);
        output(&mut on, &[])
    }

    fn does(&self, step: &Step) -> Result<()> {
        let (who, command, shown) = match step {
            Step::Save { name, text } => {
                return std::fs::write(self.file(name), text)
                    .doing(|| format!("cannot write {name}"));
            }
            Step::Type {
                who,
                command,
                shown,
            } => (*who, command.as_str(), shown),
        };
        let begun = Instant::now();
        let answers = match who {
            Who::Person => vec![self.types(command)?],
            Who::RootOfEachNode => (0..self.nodes)
                .map(|node| self.types_on(node, command))
                .collect::<Result<_>>()?,
        };
        println!("$ {command} ({:.1} s)", begun.elapsed().as_secs_f64());
        for answer in answers {
            judge(command, shown, &answer)?;
        }
        Ok(())
    }
}

/// Whether a command did, and printed, what the page says.
fn judge(command: &str, shown: &[String], answer: &Output) -> Result<()> {
    let both = [&answer.stdout[..], &answer.stderr[..]].concat();
    let printed = String::from_utf8_lossy(&both);
    println!("{printed}");
    let is_plan = command.starts_with("evenkeel plan ");
    let is_done = match answer.status.code() {
        Some(SOMETHING_TO_DO) => is_plan,
        code => code == Some(0) && !is_plan,
    };
    if !is_done {
        return Err(Error::failed(format!(
            "`{command}` of docs/install.md ended with {}: {printed}",
            answer.status
        )));
    }
    missing(shown, &printed).map_or(Ok(()), |line| {
        Err(Error::failed(format!(
            "docs/install.md says that `{command}` prints \"{line}\", but it printed: {printed}"
        )))
    })
}

#[test]
fn the_page_is_read_whole_and_says_why_it_leaves_blocks_out() -> Result<()> {
    let page = page()?;
    let typed = |wanted: &str| {
        page.steps
            .iter()
            .any(|it| matches!(it, Step::Type { command, .. } if command.starts_with(wanted)))
    };
    for command in [
        "helm install ",
        "ctr ",
        "evenkeel rollout watch ",
        "helm upgrade ",
        "helm uninstall ",
    ] {
        assert!(typed(command), "the page no longer says {command}");
    }
    let reasons = [
        "it takes long, so the test is given its result",
        "it needs a registry",
        "it shows a failure",
        "it is the cure of that failure",
    ];
    let odd = page.left_out.iter();
    let odd: Vec<_> = odd.filter(|it| !reasons.contains(&it.as_str())).collect();
    assert!(odd.is_empty(), "no reason to leave a block out: {odd:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "takes long: runs in ./test --soak"]
async fn whoever_does_what_the_install_page_says_sees_what_it_says() -> Result<()> {
    if skip()? {
        return Ok(());
    }
    let release = Release::make()?;
    let page = page()?;
    let nodes = ["node-1", "node-2"];
    let cluster = Cluster::start(&nodes, &[]).await?;
    for number in 0..nodes.len() {
        for image in release.images() {
            let name = image.file_name().unwrap_or_default().to_string_lossy();
            let contents =
                std::fs::read(&image).doing(|| format!("cannot read {}", image.display()))?;
            cluster
                .node(number)
                .write(&format!("/root/{name}"), contents)?;
        }
    }
    let person = Person::at(&cluster, nodes.len(), &release)?;
    for step in &page.steps {
        person.does(step)?;
    }
    // Where the page ends, the operator runs in a namespace that is restricted: its uninstall runs there, too.
    let again = "helm uninstall evenkeel --namespace evenkeel";
    judge(again, &[], &person.types(again)?)?;
    for number in 0..nodes.len() {
        let file = cluster.node(number).read("/etc/sysctl.d/90-inotify.conf")?;
        let file = String::from_utf8_lossy(&file);
        assert_eq!(file, "fs.inotify.max_user_watches = 524288\n");
    }
    let commands = page.steps.iter();
    let commands = commands.filter(|it| matches!(it, Step::Type { .. }));
    println!(
        "proof: {} commands of docs/install.md did on a real cluster what the page says; {} blocks left out",
        commands.count(),
        page.left_out.len()
    );
    Ok(())
}
