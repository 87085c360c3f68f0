use std::{fs, io::Read, os::unix::fs::symlink};

use super::*;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// A folder of kiln's, and somebody's folder beside it with one file, `kept`.
fn places() -> (tempfile::TempDir, Folder, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let (own, other) = (place.path().join("own"), place.path().join("other"));
    fs::create_dir(&own).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("kept"), "mine").unwrap();
    let folder = Folder::open(&own).unwrap();
    (place, folder, other)
}

fn assert_untouched(other: &Path) {
    let names: Vec<_> = fs::read_dir(other).unwrap().flatten().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(fs::read(other.join("kept")).unwrap(), b"mine");
}

#[test]
fn what_the_system_could_not_read_may_be_read_later_but_not_what_is_missing() {
    for errno in [
        Errno::MFILE,
        Errno::IO,
        Errno::STALE,
        Errno::ACCESS,
        Errno::NOMEM,
    ] {
        assert!(may_be_read_later(&errno.into()), "{errno}");
        let with_path = named(Path::new("x"), errno.into());
        assert!(may_be_read_later(&with_path), "{errno}");
    }
    for errno in [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP] {
        assert!(!may_be_read_later(&errno.into()), "{errno}");
    }
    assert!(!may_be_read_later(&io::Error::other("it is too large")));
}

#[test]
fn no_file_is_written_or_read_through_a_link() {
    let (_place, folder, other) = places();
    symlink(other.join("kept"), folder.path().join("link")).unwrap();
    symlink(other.join("new"), folder.path().join("dangling")).unwrap();
    for link in ["link", "dangling"] {
        for opened in [
            folder.create(name(link)),
            folder.append(name(link)),
            folder.edit(name(link)),
            folder.read(name(link)),
        ] {
            let error = opened.unwrap_err().to_string();
            assert!(
                error.contains(&format!("own/{link}: it is a link")),
                "{error}"
            );
        }
    }
    assert_untouched(&other);
}

#[test]
fn no_folder_is_entered_through_a_link() {
    let (place, folder, other) = places();
    symlink(&other, folder.path().join("link")).unwrap();
    for below in ["link", "link/further"] {
        let error = folder.make_folder(Path::new(below)).unwrap_err();
        assert!(
            error.to_string().contains("own/link: it is a link"),
            "{error}"
        );
    }
    symlink(folder.path(), place.path().join("to-own")).unwrap();
    assert!(Folder::open(&place.path().join("to-own")).is_err());
    assert!(Folder::follow(&place.path().join("to-own")).is_ok());
    assert_untouched(&other);
}

#[test]
fn a_file_written_whole_replaces_a_link_and_a_link_in_place_of_its_draft() {
    let (_place, folder, other) = places();
    for link in ["file", ".file.new"] {
        symlink(other.join("kept"), folder.path().join(link)).unwrap();
    }
    folder.write_whole(name("file"), b"ours").unwrap();
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"ours");
    assert_eq!(folder.names().unwrap(), ["file"]);
    assert_untouched(&other);
}

#[test]
fn a_removed_link_or_folder_of_links_leaves_what_they_lead_to() {
    let (_place, folder, other) = places();
    let inside = folder.make_folder(Path::new("a/b")).unwrap();
    symlink(&other, inside.path().join("link")).unwrap();
    symlink(&other, folder.path().join("link")).unwrap();
    fs::write(inside.path().join("file"), "").unwrap();
    ["a", "link", "missing"]
        .iter()
        .for_each(|entry| folder.remove(name(entry)).unwrap());
    assert!(folder.names().unwrap().is_empty());
    assert_untouched(&other);
}

#[test]
fn a_file_with_a_second_name_is_not_written() {
    let (_place, folder, other) = places();
    fs::hard_link(other.join("kept"), folder.path().join("file")).unwrap();
    assert!(
        folder
            .create(name("file"))
            .unwrap_err()
            .to_string()
            .contains("a second name")
    );
    let mut text = String::new();
    folder
        .read(name("file"))
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "mine");
    assert_untouched(&other);
}

#[test]
fn a_pipe_is_named_at_once() {
    let (_place, folder, _) = places();
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for opened in [folder.read(name("pipe")), folder.append(name("pipe"))] {
        assert!(opened.unwrap_err().to_string().contains("it is a FIFO"));
    }
    assert!(
        folder
            .folder(Path::new("pipe"))
            .unwrap_err()
            .to_string()
            .contains("not a folder")
    );
}

#[test]
fn names_that_lead_out_are_refused() {
    let (_place, folder, other) = places();
    for out in ["..", ".", "../other/kept", "/", "", "a/b"] {
        assert!(folder.create(name(out)).is_err(), "{out}");
        assert!(folder.remove(name(out)).is_err(), "{out}");
        assert!(folder.rename(name("x"), name(out)).is_err(), "{out}");
    }
    assert!(folder.make_folder(Path::new("../other/x")).is_err());
    assert_untouched(&other);
}

#[test]
fn a_moved_or_removed_folder_is_noticed() {
    let (place, folder, _) = places();
    assert!(folder.is_in_place() && !folder.is_removed());
    let moved = place.path().join("moved");
    fs::rename(folder.path(), &moved).unwrap();
    assert!(!folder.is_in_place() && !folder.is_removed());
    folder.write_whole(name("file"), b"x").unwrap();
    assert!(moved.join("file").exists());
    fs::create_dir(folder.path()).unwrap();
    assert!(!folder.is_in_place());
    fs::remove_dir_all(&moved).unwrap();
    assert!(folder.is_removed());
}

#[test]
fn a_file_that_several_processes_write_leaves_the_draft_of_another_alone() {
    let (_place, folder, _) = places();
    let draft = folder.path().join(".page.html.new");
    fs::write(&draft, "another's").unwrap();
    let page = folder.path().join("page.html");
    for text in ["ours", "ours again"] {
        write_among_others(&page, text.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), text);
    }
    assert_eq!(fs::read_to_string(&draft).unwrap(), "another's");
    assert_eq!(folder.names().unwrap().len(), 2);
}
