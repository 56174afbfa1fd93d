//! `strftime` for `strftime_now`.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::{Error, ErrorKind};

/// The longest result, as a bound on widths such as `%99d`.
const MAX_FORMAT_BYTES: usize = 1000;

/// Python's `datetime.strftime` at `now`, in seconds since 1970, in UTC.
pub(crate) fn format(format: &str, now: i64) -> Result<String, Error> {
    let fail = |message: String| Error::new(ErrorKind::InvalidOperation, message);
    if format.len() > MAX_FORMAT_BYTES {
        return Err(fail(format!("strftime_now: format is longer than {MAX_FORMAT_BYTES} bytes")));
    }
    let now = Timestamp::from_second(now).map_err(|error| fail(error.to_string()))?;
    let now = now.to_zoned(TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(|error| fail(format!("strftime_now: {error}")))
}
