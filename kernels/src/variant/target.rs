//! Devices, and the families of kernels that they run.

use std::fmt;

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// TMA, `wgmma` and warp specialisation; compute capability 9.0 only.
    Hopper,
    /// `mma.sync` and `cp.async`; compute capability 8.0 and above.
    Portable,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hopper => "hopper",
            Self::Portable => "portable",
        })
    }
}

/// Compute capability of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The capability has no kernels of the wanted family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Too old for every family.
    #[error("compute capability {0} has no kernels; 8.0 (A100) and above do")]
    TooOld(Capability),
    /// The Hopper kernels use instructions of 9.0a, which no other capability runs.
    #[error(
        "the hopper kernels run on compute capability 9.0 only, this device has {0}; use the portable ones"
    )]
    NotHopper(Capability),
}

impl Path {
    /// The path asked for, or the fastest one that `capability` runs.
    pub fn choose(capability: Capability, wanted: Option<Self>) -> Result<Self, PathError> {
        let hopper = capability == Capability { major: 9, minor: 0 };
        match wanted {
            _ if capability.major < 8 => Err(PathError::TooOld(capability)),
            Some(Self::Hopper) if !hopper => Err(PathError::NotHopper(capability)),
            Some(path) => Ok(path),
            None if hopper => Ok(Self::Hopper),
            None => Ok(Self::Portable),
        }
    }
}

/// A device's kernels: a family and the capability it is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The family.
    pub path: Path,
    /// The device's capability.
    pub capability: Capability,
}

impl Target {
    /// NVRTC's name of the architecture, as in `sm_90a`.
    pub fn architecture(self) -> String {
        let Capability { major, minor } = self.capability;
        match self.path {
            Path::Hopper => format!("sm_{major}{minor}a"),
            Path::Portable => format!("sm_{major}{minor}"),
        }
    }

    /// Whether a CTA may have the 160 KiB of shared memory that the larger backward tiles take.
    ///
    /// The data-centre chips (8.0, 8.7, 9.0, 10.x) allow 163 KiB and more, the others 99 KiB.
    pub(super) fn has_large_shared_memory(self) -> bool {
        matches!((self.capability.major, self.capability.minor), (8, 0 | 7) | (9..=11, _))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: Capability = Capability { major: 8, minor: 0 };
    const H200: Capability = Capability { major: 9, minor: 0 };

    #[test]
    fn path_follows_the_capability_unless_told_otherwise() {
        assert_eq!(Path::choose(H200, None), Ok(Path::Hopper));
        assert_eq!(Path::choose(H200, Some(Path::Portable)), Ok(Path::Portable));
        assert_eq!(Path::choose(A100, None), Ok(Path::Portable));
        assert_eq!(Path::choose(A100, Some(Path::Hopper)), Err(PathError::NotHopper(A100)));
        let turing = Capability { major: 7, minor: 5 };
        assert_eq!(Path::choose(turing, Some(Path::Portable)), Err(PathError::TooOld(turing)));
    }
}
