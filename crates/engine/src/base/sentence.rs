//! Errors that are sentences.

/// An error that prints as its sentence also where it is formatted for debugging: so do programs
/// whose `main` returns it, and those that unwrap it.
macro_rules! error_is_a_sentence {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::error::Error for $error {}
    };
}

pub(crate) use error_is_a_sentence;
