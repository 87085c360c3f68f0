//! The ceiling that MFU is measured against: FLOP/s of a dense matrix product per device and precision. Measured peaks
//! (`kiln calibrate`) are kept in one file per user; a table of datasheet values is the fallback. Precisions go by their
//! names in experiment files.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};

/// Version of the file.
const PEAKS_FILE: u32 = 1;

/// All measured peaks of this user's machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PeaksFile {
    kiln_peaks: u32,
    peaks: Vec<MeasuredPeak>,
}

/// One measured peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPeak {
    #[serde(flatten)]
    pub device: DeviceKey,
    pub libtorch: String,
    /// `f32`, `amp-bf16`.
    pub precision: String,
    pub flops: f64,
    /// Rows and columns of the factors that reached it.
    pub size: u64,
}

/// What a peak belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceKey {
    /// GPU UUID, or the CPU's model.
    pub device: String,
    /// The product's name, by which the table knows it.
    pub name: String,
    /// Driver version; absent for a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Threads of a CPU's product; absent for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_threads: Option<u64>,
}

/// A ceiling and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Dense, FLOP/s.
    pub flops: f64,
    /// `measured` or `table`.
    pub source: &'static str,
}

/// `$XDG_CACHE_HOME/kiln/peaks.json`, else `~/.cache/kiln/peaks.json`; `None` if neither variable is set.
pub fn peaks_path() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("kiln").join("peaks.json"))
}

/// The peak of this device at this precision: the last one measured (a peak of the libtorch named goes before others), else
/// the datasheet's; `None` if neither is known.
pub fn lookup(path: Option<&Path>, device: &DeviceKey, libtorch: Option<&str>, precision: &str) -> Option<Peak> {
    let measured = path.and_then(|path| read(path).ok()).unwrap_or_default();
    let of_device = |peak: &&MeasuredPeak| peak.device == *device && peak.precision == precision;
    let same_libtorch = measured.iter().filter(of_device).rfind(|peak| libtorch.is_none_or(|libtorch| peak.libtorch == libtorch));
    let found = same_libtorch.or_else(|| measured.iter().rfind(of_device));
    found.map(|peak| Peak { flops: peak.flops, source: "measured" }).or_else(|| table(&device.name, precision))
}

/// Keeps new peaks in the file, in the place of older ones of the same device, libtorch and precision.
///
/// Errors: the file cannot be read or written, or is none of kiln's.
pub fn keep(path: &Path, new: &[MeasuredPeak]) -> io::Result<()> {
    let mut peaks = read(path)?;
    let replaced =
        |old: &MeasuredPeak| new.iter().any(|new| old.device == new.device && old.libtorch == new.libtorch && old.precision == new.precision);
    peaks.retain(|old| !replaced(old));
    peaks.extend_from_slice(new);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension(format!("json.{}", process::id()));
    fs::write(&partial, serde_json::to_string_pretty(&PeaksFile { kiln_peaks: PEAKS_FILE, peaks })?)?;
    fs::rename(&partial, path)
}

/// A missing file holds no peaks.
fn read(path: &Path) -> io::Result<Vec<MeasuredPeak>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let file: PeaksFile = serde_json::from_str(&text)?;
    if file.kiln_peaks != PEAKS_FILE {
        let text = format!("{} is version {}; this kiln reads version {PEAKS_FILE}", path.display(), file.kiln_peaks);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(file.peaks)
}

/// Dense peaks in TFLOP/s: words of the product's name (all must be in it; the first row that fits counts), f32 without tensor
/// cores, bf16 with f32 accumulation and without sparsity. Source: NVIDIA's datasheets and architecture white papers (V100
/// 2017, Turing 2018, A100 and GA102 2020, A10, A30, A40 2021, Ada 2022, H100 2022, L4, L40S 2023, H200 2024, Blackwell 2025).
const TABLE: [(&[&str], f64, Option<f64>); 22] = [
    (&["B200"], 75.0, Some(2250.0)),
    (&["H200", "NVL"], 60.0, Some(835.5)),
    (&["H200"], 67.0, Some(989.4)),
    (&["H100", "PCIe"], 51.2, Some(756.4)),
    (&["H100", "NVL"], 60.0, Some(835.5)),
    (&["H100"], 66.9, Some(989.4)),
    (&["A100"], 19.5, Some(311.9)),
    (&["A30"], 10.3, Some(165.1)),
    (&["A10"], 31.2, Some(125.0)),
    (&["A40"], 37.4, Some(149.7)),
    (&["A6000"], 38.7, Some(154.8)),
    (&["L40S"], 91.6, Some(362.1)),
    (&["L40"], 90.5, Some(181.1)),
    (&["L4"], 30.3, Some(121.2)),
    (&["V100", "SXM2"], 15.7, None),
    (&["V100"], 14.1, None),
    (&["T4"], 8.1, None),
    (&["RTX 4090"], 82.6, Some(165.2)),
    (&["RTX 4080"], 48.7, Some(97.5)),
    (&["RTX 3090 Ti"], 40.0, Some(80.0)),
    (&["RTX 3090"], 35.6, Some(71.0)),
    (&["RTX 3080"], 29.8, Some(59.5)),
];

/// Words that tell a product from the one whose name it extends.
const VARIANTS: [&str; 6] = ["Laptop", "D", "Ti", "SUPER", "Max-Q", "Mobile"];

fn table(name: &str, precision: &str) -> Option<Peak> {
    let name_words: Vec<&str> = name.split([' ', '-', '_']).collect();
    let has = |words: &&str| words.split(' ').all(|word| name_words.contains(&word));
    // Another word makes another product: an RTX 4080 SUPER is no RTX 4080.
    let is_plain =
        |row: &[&str]| VARIANTS.iter().all(|variant| !has(variant) || row.iter().any(|words| words.split(' ').any(|word| word == *variant)));
    let (_, f32_peak, bf16_peak) = TABLE.iter().find(|(words, _, _)| words.iter().all(has) && is_plain(words))?;
    let tera = match precision {
        "f32" => Some(*f32_peak),
        "amp-bf16" | "bf16" => *bf16_peak,
        _ => None,
    }?;
    Some(Peak { flops: tera * 1e12, source: "table" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> DeviceKey {
        DeviceKey { device: "GPU-1".to_owned(), name: "NVIDIA H200".to_owned(), driver: Some("580.1".to_owned()), cpu_threads: None }
    }

    fn measured(flops: f64, libtorch: &str) -> MeasuredPeak {
        MeasuredPeak { device: gpu(), libtorch: libtorch.to_owned(), precision: "f32".to_owned(), flops, size: 8192 }
    }

    #[test]
    fn a_measured_peak_goes_before_the_table_and_its_own_libtorch_before_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kiln").join("peaks.json");
        assert_eq!(lookup(Some(&path), &gpu(), None, "f32"), Some(Peak { flops: 67.0e12, source: "table" }));
        keep(&path, &[measured(5e13, "2.10.0")]).unwrap();
        keep(&path, &[measured(6e13, "2.11.0"), measured(4e13, "2.10.0")]).unwrap();
        let flops = |libtorch| lookup(Some(&path), &gpu(), libtorch, "f32").unwrap();
        assert_eq!(flops(Some("2.11.0")), Peak { flops: 6e13, source: "measured" });
        assert_eq!(flops(Some("2.10.0")).flops, 4e13, "the newer one replaced the older");
        assert_eq!(flops(Some("2.9.0")).source, "measured");
        assert_eq!(lookup(Some(&path), &DeviceKey { driver: None, ..gpu() }, None, "f32").unwrap().source, "table", "another driver");
    }

    #[test]
    fn names_of_products_find_their_row_and_no_other() {
        let bf16 = |name: &str| table(name, "amp-bf16").map(|peak| peak.flops / 1e12);
        assert_eq!(bf16("NVIDIA A100-SXM4-80GB"), Some(311.9));
        assert_eq!(bf16("NVIDIA A10"), Some(125.0));
        assert_eq!(bf16("NVIDIA H100 PCIe"), Some(756.4));
        assert_eq!(bf16("NVIDIA H100 80GB HBM3"), Some(989.4));
        assert_eq!(bf16("NVIDIA L40S"), Some(362.1));
        assert_eq!(bf16("NVIDIA GeForce RTX 3090 Ti"), Some(80.0));
        for other in ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4080 SUPER"] {
            assert_eq!(bf16(other), None, "{other} is another product");
        }
        assert_eq!(bf16("Tesla V100-SXM2-16GB"), None, "no bf16 on Volta");
        assert_eq!(bf16("Some CPU @ 2.00GHz"), None);
        assert_eq!(table("NVIDIA H200", "tf32"), None);
    }

    #[test]
    fn a_file_of_another_version_is_refused_and_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("peaks.json");
        fs::write(&path, r#"{"kiln_peaks": 2, "peaks": []}"#).unwrap();
        assert!(keep(&path, &[measured(1.0, "2.11.0")]).unwrap_err().to_string().contains("version 2"));
        assert!(fs::read_to_string(&path).unwrap().contains(": 2"));
    }
}
