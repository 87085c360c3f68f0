//! For tests: the same files in a folder and in each kind of archive.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// The form in which files are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Folder,
    Tar,
    TarGz,
    TarXz,
    Zip,
}

impl Packing {
    pub(super) const ALL: [Self; 5] =
        [Self::Folder, Self::Tar, Self::TarGz, Self::TarXz, Self::Zip];
}

/// Packs files (path, text) into `folder`, and returns their place. A folder keeps their names
/// without parent folders.
pub(super) fn pack(folder: &Path, packing: Packing, files: &[(&str, &str)]) -> PathBuf {
    let (name, bytes) = match packing {
        Packing::Folder => return unpacked(folder, files),
        Packing::Tar => ("panel.tar", tar(files)),
        Packing::TarGz => ("panel.tar.gz", gz(&tar(files))),
        Packing::TarXz => ("panel.tar.xz", xz(&tar(files))),
        Packing::Zip => ("panel.zip", zip(files)),
    };
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn unpacked(folder: &Path, files: &[(&str, &str)]) -> PathBuf {
    let panel = folder.join("panel");
    fs::create_dir(&panel).unwrap();
    for (path, text) in files {
        fs::write(panel.join(Path::new(path).file_name().unwrap()), text).unwrap();
    }
    panel
}

fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(bytes).unwrap();
    xz.finish().unwrap()
}

fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (path, text) in files {
        zip.start_file(*path, zip::write::SimpleFileOptions::default())
            .unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
