//! A local user of a Windows machine who was there before us, and left something for the system to run.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use evenkeel_testbed::wait::{Look, until_async};
use evenkeel_testbed::{Doing, Result};

use crate::instances::bed::{Bed, LONG, is_skipped};

fn write(path: &Path, mode: u32) -> Result<()> {
    let written = std::fs::write(path, b"MZ planted by a local user");
    let written = written.and_then(|()| open(path, mode));
    written.doing(|| format!("cannot plant {}", path.display()))
}

fn open(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// What others than the owner and its group may do there.
fn others(path: &Path) -> Result<u32> {
    let found = std::fs::metadata(path).doing(|| format!("no {}", path.display()))?;
    Ok(found.permissions().mode() & 0o007)
}

/// Covers S04.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_local_user_left_behind_is_neither_run_nor_followed_nor_kept() -> Result<()> {
    if is_skipped()? {
        return Ok(());
    }
    let bed = Bed::new("hostile-local").await?;
    let instance = bed.instance("op-local")?;
    let address = instance.address().to_string();
    let folder = instance.path(r"C:\k")?;
    // A link to where the user would like to have programs of the system.
    let trap = instance.path(r"C:\trap")?;
    std::fs::create_dir(&trap).doing(|| "cannot make a folder")?;
    symlink("trap", &folder).doing(|| "cannot make a link")?;
    let _operator = bed.operator(&[])?;
    bed.services().await?;
    bed.list_these(&[&instance]).await?;
    bed.told("ForeignFolder", &[&address, "is a link"]).await?;
    let caught = std::fs::read_dir(&trap)
        .doing(|| "there is no trap")?
        .count();
    assert_eq!(caught, 0, "it was followed");
    // Then a folder of the user's own, with an agent and a library that any program there would load.
    std::fs::remove_file(&folder).doing(|| "cannot remove a link")?;
    for place in [folder.clone(), folder.join("state")] {
        std::fs::create_dir(&place).doing(|| "cannot make a folder")?;
        open(&place, 0o777).doing(|| "cannot open a folder")?;
    }
    for file in ["evenkeel-agent.exe", "version.dll", "state/record.json"] {
        write(&folder.join(file), 0o777)?;
    }
    let said = bed.told("FolderMovedAside", &[&address]).await?;
    println!("proof: {said}");
    bed.serves(&instance).await?;
    assert!(
        !folder.join("version.dll").exists(),
        "what was planted is there still"
    );
    let drive = std::fs::read_dir(instance.drive_c()).doing(|| "there is no C:")?;
    let names = drive.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let aside: Vec<String> = names.filter(|it| it.contains("before-evenkeel")).collect();
    let [aside] = aside.as_slice() else {
        panic!("{aside:?}")
    };
    let kept = instance.drive_c().join(aside).join("version.dll");
    assert!(kept.exists(), "somebody else's files were not kept");

    // What was planted while the folder was open, by a version that did not look into it, is closed with it.
    let planted = [folder.join("planted"), folder.join("planted/x.exe")];
    std::fs::create_dir(&planted[0]).doing(|| "cannot make a folder")?;
    open(&planted[0], 0o777).doing(|| "cannot open a folder")?;
    write(&planted[1], 0o777)?;
    let logs = instance.path(r"C:\var\log\evenkeel")?;
    open(&logs, 0o777).doing(|| "cannot open a folder")?;
    for what in ["stop", "start"] {
        instance.ask(&["windows-probe", "service", what, "evenkeel-agent"])?;
    }
    until_async("all in the folder to be closed", LONG, async || {
        let open: Vec<_> = planted
            .iter()
            .chain([&logs])
            .map(|it| Ok((it, others(it)?)))
            .collect::<Result<_>>()?;
        Ok(if open.iter().all(|(_, mode)| *mode == 0) {
            Look::Found(())
        } else {
            Look::NotYet(format!("{open:?}"))
        })
    })
    .await
}
