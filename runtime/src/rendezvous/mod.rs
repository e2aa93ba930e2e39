//! How the processes of a run find each other: who each is comes from its launcher ([`Launch`]), and what they tell each
//! other at the start and at the end travels by files in a shared folder ([`Meeting`]).

mod error;
mod launch;
mod meeting;

pub use error::{LaunchError, MeetError};
pub use launch::{Flags, Launch, Launcher, Variables};
pub use meeting::Meeting;
