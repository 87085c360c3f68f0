//! The license that a guest's share of a GPU (vGPU) needs.

use nvml_wrapper_sys::bindings::{nvmlGridLicensableFeature_t, nvmlGridLicenseExpiry_t};

use super::{DeviceSource, Modes};
use crate::{
    Absence, Reading,
    nvml::{calls, raw::text},
};

/// License of a guest for its share of a GPU.
#[derive(Clone, Debug)]
pub struct License {
    pub product: Reading<String>,
    /// In nvidia-smi's words: `Licensed (Expiry: 2026-7-7 16:1:44 GMT)`, `Unlicensed`.
    pub status: Reading<String>,
}

/// `NVML_GPU_VIRTUALIZATION_MODE_VGPU`.
const GUEST: u64 = 2;

/// The feature that is switched on. Not supported where the GPU is not a guest's share.
pub(super) fn read(source: &DeviceSource<'_>, modes: &Modes) -> License {
    let feature = match modes.virtualization.value() {
        Some(&GUEST) => source.raw(calls::licensable_features).and_then(|found| {
            let count = usize::try_from(found.licensableFeaturesCount).unwrap_or(0);
            let mut features = found
                .gridLicensableFeatures
                .iter()
                .take(count)
                .filter(|_| found.isGridLicenseSupported != 0);
            features
                .find(|feature| feature.featureEnabled != 0)
                .map_or(Reading::Absent(Absence::NotSupported), |feature| {
                    Reading::Value(*feature)
                })
        }),
        _ => Reading::Absent(Absence::NotSupported),
    };
    License {
        product: feature.as_ref().map(|feature| text(&feature.productName)),
        status: feature.map(|feature| status(&feature)),
    }
}

fn status(feature: &nvmlGridLicensableFeature_t) -> String {
    if feature.featureState == 0 {
        "Unlicensed".to_owned()
    } else {
        format!("Licensed{}", expiry(&feature.licenseExpiry))
    }
}

/// As nvidia-smi writes it, without leading zeros. The states are `NVML_GRID_LICENSE_EXPIRY_…`.
fn expiry(at: &nvmlGridLicenseExpiry_t) -> String {
    match at.status {
        2 => format!(
            " (Expiry: {}-{}-{} {}:{}:{} GMT)",
            at.year, at.month, at.day, at.hour, at.min, at.sec
        ),
        4 => " (Expiry: Permanent)".to_owned(),
        3 => String::new(),
        _ => " (Expiry: N/A)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_says_when_it_ends() {
        let at = |status| nvmlGridLicenseExpiry_t {
            year: 2026,
            month: 7,
            day: 7,
            hour: 16,
            min: 1,
            sec: 44,
            status,
        };
        assert_eq!(
            [2, 3, 4].map(|status| expiry(&at(status))),
            [
                " (Expiry: 2026-7-7 16:1:44 GMT)",
                "",
                " (Expiry: Permanent)"
            ]
        );
    }
}
