//! Plain arguments of the verbs.

/// What one attention layer does, apart from its projections.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Layer of the model.
    pub layer: usize,
    /// KV group that the layer belongs to.
    pub group: usize,
    /// Place of the layer within its group.
    pub layer_in_group: usize,
    /// Query heads of this rank.
    pub num_heads: usize,
    /// Key/value heads of this rank; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Factor on `q · k`, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Rotary positions, where the layer has them.
    pub rope: Option<Rope>,
    /// A token sees itself and the `window - 1` tokens before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` on the scaled scores.
    pub soft_cap: Option<f32>,
    /// Epsilon of the norms of `q` and `k`, where the layer has them.
    pub qk_norm_eps: f32,
}

impl AttentionSpec {
    /// Columns of the packed `qkv`.
    #[must_use]
    pub fn qkv_cols(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }
}

/// Rotary positions (Su et al. 2021, RoFormer, section 3.4.2), in the half-split order of HF: the
/// element `i` of a head turns with the element `i + inv_freq.len()`. Elements from
/// `2 * inv_freq.len()` on stay. Every scaling (linear, llama3, yarn, longrope) is a choice of
/// these numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair.
    pub inv_freq: Vec<f32>,
    /// Factor on sine and cosine (yarn's attention factor), else 1.
    pub attention_factor: f32,
    /// Positions from 0 that occur, so that tables can be made at load.
    pub max_positions: usize,
}

/// Activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}
