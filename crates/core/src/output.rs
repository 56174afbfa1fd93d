//! What a step gives back, and why a sequence ends.

use crate::TokenId;

/// One row of the sampling batch each, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Results.
    pub rows: Vec<RowOutput>,
}

/// Result of one sampling row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowOutput {
    /// The tokens drawn: one, or none on a fault; more when drafts were accepted. For a row that
    /// only scores, its target.
    pub tokens: Vec<TokenId>,
    /// One entry a token, where logprobs were asked for.
    pub logprobs: Option<Vec<TokenLogprobs>>,
    /// Why this row, and only this row, failed.
    pub fault: Option<RowFault>,
}

/// Log-probabilities at one position, from the logits before temperature and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The drawn (or scored) token.
    pub chosen: TokenLogprob,
    /// Rank of the chosen token among all, from 1.
    pub rank: u32,
    /// The most likely tokens, best first; as many as asked for.
    pub top: Vec<TokenLogprob>,
}

/// A token and the log of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm; finite or negative infinity, never NaN.
    pub logprob: f32,
}

/// A fault of one row. It ends one request and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// The logits of the row hold NaN or only infinities.
    #[error("the model produced logits that are not numbers")]
    NotANumber,
    /// No token is allowed by mask, bias and bans together.
    #[error("no token is allowed by the constraints of the request")]
    NoAllowedToken,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// `max_tokens` or the context is used up.
    Length,
    /// An end-of-sequence token or a stop token of the request.
    StopToken(TokenId),
    /// The stop string at this index of the request.
    StopString(usize),
    /// The caller went away.
    Cancelled,
    /// The request's time was up.
    Deadline,
    /// A fault of this request, or of the device.
    Fault,
}
