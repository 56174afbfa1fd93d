//! API keys. What is compared are digests, all of them, in constant time.

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

/// The keys that open the server, as digests: the keys themselves are not kept.
#[derive(Debug)]
pub(crate) struct Keys(Vec<blake3::Hash>);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key is needed.
    Open,
    /// The key with this digest was shown.
    Granted(blake3::Hash),
    /// A key is needed, and none or a wrong one was shown.
    Denied,
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// Looks for a key in `Authorization: Bearer` and in `x-api-key`; nowhere else.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Access {
        if self.0.is_empty() {
            return Access::Open;
        }
        let shown = headers
            .get(AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()))
            .or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
        let Some(shown) = shown else { return Access::Denied };
        let shown = blake3::hash(shown);
        // Each comparison takes the same time, and none is left out.
        let is_known = self.0.iter().fold(false, |found, key| found | (*key == shown));
        if is_known { Access::Granted(shown) } else { Access::Denied }
    }
}

/// What follows the scheme `Bearer`, whose case does not matter.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(header: &'static str, value: &[u8]) -> Access {
        let keys = Keys::new(&["first".into(), "zw\u{f6}lf".into()]);
        let mut headers = HeaderMap::new();
        headers.insert(header, hyper::header::HeaderValue::from_bytes(value).expect("a header"));
        keys.check(&headers)
    }

    #[test]
    fn a_key_opens_in_the_two_places_where_clients_put_it() {
        let granted = |key: &str| Access::Granted(blake3::hash(key.as_bytes()));
        assert_eq!(check("authorization", b"Bearer first"), granted("first"));
        assert_eq!(check("authorization", b"bEARER  first"), granted("first"));
        assert_eq!(check("authorization", "Bearer zw\u{f6}lf".as_bytes()), granted("zw\u{f6}lf"));
        assert_eq!(check("x-api-key", b"first"), granted("first"));
    }

    #[test]
    fn anything_else_is_denied() {
        for value in ["Bearer", "Bearer ", "Bearer firs", "Bearer first2", "Bearer FIRST", "first"]
        {
            assert_eq!(check("authorization", value.as_bytes()), Access::Denied, "{value}");
        }
        assert_eq!(check("authorization", b"Basic first"), Access::Denied);
        assert_eq!(check("authorization", b"Bearer first second"), Access::Denied);
        assert_eq!(check("cookie", b"first"), Access::Denied);
        assert_eq!(Keys::new(&[]).check(&HeaderMap::new()), Access::Open);
    }
}
