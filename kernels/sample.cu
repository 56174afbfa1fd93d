// Sampling on the device: the function of pagedllm-backend's sampler module, row by row.
//
//   sample_adjust    rows with masks, bias or penalties: the adjusted logits, in a scratch row
//   sample_scan      per slice of the vocabulary: best token, sum of weights, faults
//   sample_histogram rows with filters, per slice: counts and weights by distance from the best
//   sample_draw      one block a row: faults, greedy choice, filters, inverse CDF in token order
//   sample_logprobs  one block a row that asks: log-probability, rank, alternatives
//   state_*          the penalty state: bit 31 of a word says "in the prompt", the rest counts
//
// Weights are exp((logit - best) / temperature) in fixed point with 40 fraction bits, so sums do
// not depend on their order and a seeded draw is the same on every run.
#include "include/pagedllm/plan.h"
#include "include/pagedllm/reduce.cuh"
#include "include/pagedllm/types.cuh"

constexpr uint32_t SLICES = 32;
constexpr uint32_t IN_PROMPT = 0x80000000u;
constexpr uint32_t SCAN_THREADS = 256, DRAW_THREADS = 1024;
constexpr uint32_t BINS = 2048;
constexpr float BINS_PER_UNIT = 64.f; // of (best - logit) / temperature; the last bin takes the rest
constexpr uint32_t LISTED = 2048;     // tokens of one bin that are ranked in shared memory
constexpr uint32_t NO_ROW = 0xffffffffu;

struct Slice {
    float best; // adjusted
    uint32_t best_token;
    float sum; // weights against `best`
    float raw_best;
    float raw_sum; // exp(logit - raw_best)
    uint32_t is_nan;
};

__device__ __forceinline__ uint32_t slice_length(uint32_t vocab) { return (vocab + SLICES - 1) / SLICES; }

// Places floats in the order of unsigned integers.
__device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Philox4x32-10, first word.
__device__ __forceinline__ uint32_t philox(uint32_t c0, uint32_t c1, uint32_t k0, uint32_t k1) {
    uint32_t c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// blockIdx.y indexes `adjusted_rows`, blockIdx.x the slice.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    sample_adjust(const float *logits /* [R, V] */, const SamplingRow *rows,
                  const uint32_t *adjusted_rows /* [adjusted] sampling rows */, float *scratch /* [adjusted, V] */,
                  const uint32_t *masks /* [masks, ceil(V / 32)] */, const uint2 *biases /* token, f32 bits */,
                  const uint32_t *state /* [state rows, V] */, uint32_t vocab) {
    wait_for_inputs();
    const SamplingRow row = rows[adjusted_rows[blockIdx.y]];
    const float *from = logits + size_t(row.logit_row) * vocab;
    float *to = scratch + size_t(blockIdx.y) * vocab;
    const uint32_t begin = blockIdx.x * slice_length(vocab), end = min(begin + slice_length(vocab), vocab);
    const uint32_t *mask = row.flags & ROW_MASK ? masks + size_t(row.mask) * ((vocab + 31) / 32) : nullptr;
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const bool allowed = !mask || (mask[i >> 5] >> (i & 31) & 1);
        to[i] = allowed ? from[i] : -INFINITY;
    }
    __syncthreads();
    for (uint32_t i = row.bias_begin + threadIdx.x; i < row.bias_end; i += blockDim.x) {
        const uint2 bias = biases[i];
        if (bias.x >= begin && bias.x < end) atomicAdd(to + bias.x, __uint_as_float(bias.y));
    }
    __syncthreads();
    if (!(row.flags & ROW_STATE)) return;
    const uint32_t *seen = state + size_t(row.state_row) * vocab;
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t word = seen[i], generated = word & ~IN_PROMPT;
        if (word == 0) continue;
        float x = to[i];
        x = x > 0.f ? x / row.repetition_penalty : x * row.repetition_penalty;
        if (generated) x -= row.frequency_penalty * float(generated) + row.presence_penalty;
        to[i] = x;
    }
}

struct Best {
    float value;
    uint32_t token;
};
struct BetterOf {
    __device__ __forceinline__ Best operator()(Best a, Best b) const {
        return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
    }
};
__device__ __forceinline__ Best warp_best(Best x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        const Best other = {__shfl_xor_sync(0xffffffffu, x.value, offset), __shfl_xor_sync(0xffffffffu, x.token, offset)};
        x = BetterOf()(x, other);
    }
    return x;
}
__device__ __forceinline__ Best block_best(Best x, Best *scratch) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    x = warp_best(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_best(lane < warps ? scratch[lane] : Best{-INFINITY, 0xffffffffu});
    __syncthreads();
    return x;
}

// blockIdx.y is the sampling row, blockIdx.x the slice.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    sample_scan(const float *logits, const SamplingRow *rows, const float *scratch,
                const uint32_t *scratch_rows /* [rows] row of `scratch` or NO_ROW */, Slice *slices /* [rows, SLICES] */,
                uint32_t vocab) {
    __shared__ float sums[32];
    __shared__ Best bests[32];
    wait_for_inputs();
    const SamplingRow row = rows[blockIdx.y];
    const float *raw = logits + size_t(row.logit_row) * vocab;
    const uint32_t scratch_row = scratch_rows[blockIdx.y];
    const float *adjusted = scratch_row == NO_ROW ? raw : scratch + size_t(scratch_row) * vocab;
    const uint32_t begin = blockIdx.x * slice_length(vocab), end = min(begin + slice_length(vocab), vocab);
    float raw_best = -INFINITY;
    uint32_t is_nan = 0;
    Best best = {-INFINITY, 0xffffffffu};
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        const float x = raw[i];
        is_nan |= isnan(x);
        raw_best = fmaxf(raw_best, x);
        best = BetterOf()(best, Best{adjusted[i], i});
    }
    best = block_best(best, bests);
    raw_best = block_reduce(raw_best, Max(), -INFINITY, sums);
    is_nan = __syncthreads_or(is_nan);
    float sum = 0, raw_sum = 0;
    const bool draws = !(row.flags & (ROW_SCORE | ROW_GREEDY | ROW_FILTERED));
    const bool logprobs = row.flags & ROW_LOGPROBS;
    if (draws || logprobs) {
        for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            if (draws && best.value > -INFINITY) sum += expf((adjusted[i] - best.value) / row.temperature);
            if (logprobs && raw_best > -INFINITY) raw_sum += expf(raw[i] - raw_best);
        }
        sum = block_reduce(sum, Sum(), 0.f, sums);
        raw_sum = block_reduce(raw_sum, Sum(), 0.f, sums);
    }
    if (threadIdx.x == 0)
        slices[blockIdx.y * SLICES + blockIdx.x] = {best.value, best.token, sum, raw_best, raw_sum, is_nan};
}

struct Filter {
    uint32_t key;  // tokens above it are kept,
    uint32_t ties; // and this many of those that equal it, lowest ids first
};

// Of one row; zeros between steps.
struct Histogram {
    uint32_t counts[BINS];
    unsigned long long weights[BINS];
};

struct DrawShared {
    uint32_t keys[LISTED];
    unsigned long long measures[LISTED]; // weight, or 1
    unsigned long long scan[32];
    uint32_t ties[32];
    unsigned long long before;
    uint32_t found;
    uint32_t listed;
    uint32_t key;
    uint32_t key_ties;
    uint32_t run_begin, run_end; // of the warp that holds the target
    uint32_t run_ties;
};

struct Weigher {
    float best, temperature;
    __device__ __forceinline__ unsigned long long operator()(float x) const {
        return static_cast<unsigned long long>(expf((x - best) / temperature) * 1099511627776.f);
    }
    // Falls as the logit rises. Minus infinity has no bin.
    __device__ __forceinline__ uint32_t bin(float x) const {
        return min(static_cast<uint32_t>((best - x) / temperature * BINS_PER_UNIT), BINS - 1);
    }
};

// Calls `visit(logit, token)` for the block's share of a row: every thread has several loads on
// their way before it uses the first.
template <class Visit> __device__ __forceinline__ void for_each(const float *row, uint32_t vocab, Visit visit) {
    constexpr int BATCH = 8;
    for (uint32_t i = threadIdx.x; i < vocab; i += BATCH * blockDim.x) {
        float x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const uint32_t at = i + k * blockDim.x;
            x[k] = at < vocab ? row[at] : -INFINITY;
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) visit(x[k], i + k * blockDim.x);
    }
}

__device__ __forceinline__ unsigned long long warp_inclusive(unsigned long long x) {
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const unsigned long long other = __shfl_up_sync(0xffffffffu, x, offset);
        if (lane >= uint32_t(offset)) x += other;
    }
    return x;
}
// Over the 1024 threads of the block.
__device__ unsigned long long block_inclusive(unsigned long long x, unsigned long long *scan) {
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    x = warp_inclusive(x);
    if (lane == 31) scan[warp] = x;
    __syncthreads();
    if (warp == 0) scan[lane] = warp_inclusive(scan[lane]);
    __syncthreads();
    if (warp > 0) x += scan[warp - 1];
    __syncthreads();
    return x;
}

// blockIdx.y indexes `filtered_rows`, blockIdx.x the slice.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
    sample_histogram(const float *logits, const SamplingRow *rows, const float *scratch, const uint32_t *scratch_rows,
                     const uint32_t *filtered_rows /* [filtered] sampling rows */, const Slice *slices,
                     Histogram *histograms /* [filtered] */, uint32_t vocab) {
    __shared__ Histogram shared;
    for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x) shared.counts[i] = 0, shared.weights[i] = 0;
    wait_for_inputs();
    const uint32_t index = filtered_rows[blockIdx.y];
    const SamplingRow row = rows[index];
    const uint32_t scratch_row = scratch_rows[index];
    const float *x = scratch_row == NO_ROW ? logits + size_t(row.logit_row) * vocab : scratch + size_t(scratch_row) * vocab;
    float best = -INFINITY;
    for (uint32_t s = 0; s < SLICES; s++) best = fmaxf(best, slices[index * SLICES + s].best);
    const Weigher weigh = {best, row.temperature};
    __syncthreads();
    const uint32_t begin = blockIdx.x * slice_length(vocab), end = min(begin + slice_length(vocab), vocab);
    if (best == -INFINITY) return;
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        if (!(x[i] > -INFINITY)) continue;
        const uint32_t bin = weigh.bin(x[i]);
        atomicAdd(&shared.counts[bin], 1u);
        atomicAdd(&shared.weights[bin], weigh(x[i]));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x) {
        if (!shared.counts[i]) continue;
        atomicAdd(&histograms[blockIdx.y].counts[i], shared.counts[i]);
        atomicAdd(&histograms[blockIdx.y].weights[i], shared.weights[i]);
    }
}

// The shortest run of the most likely tokens whose count (or weight) reaches `wanted`: the bin
// from the histogram, then the place within the bin. `counts`
// and `weights` are those of the thread's two bins.
template <bool BY_WEIGHT>
__device__ Filter select(const float *row, uint32_t vocab, const Weigher &weigh, unsigned long long wanted,
                         const uint2 counts, const ulonglong2 weights, DrawShared &shared) {
    const uint32_t bin = threadIdx.x * 2;
    const unsigned long long a = BY_WEIGHT ? weights.x : counts.x, b = BY_WEIGHT ? weights.y : counts.y;
    if (threadIdx.x == 0) shared.found = BINS, shared.listed = 0, shared.key = 0, shared.key_ties = 0xffffffffu;
    __syncthreads();
    const unsigned long long through = block_inclusive(a + b, shared.scan), until = through - a - b;
    if (until < wanted && through >= wanted) {
        const bool first = until + a >= wanted;
        shared.found = first ? bin : bin + 1;
        shared.before = first ? until : until + a;
    }
    __syncthreads();
    const uint32_t found = shared.found;
    if (found == BINS) return {0, 0xffffffffu};
    for_each(row, vocab, [&](float x, uint32_t) {
        if (!(x > -INFINITY) || weigh.bin(x) != found) return;
        const uint32_t place = atomicAdd(&shared.listed, 1u);
        if (place < LISTED) shared.keys[place] = key_of(x), shared.measures[place] = BY_WEIGHT ? weigh(x) : 1;
    });
    __syncthreads();
    const uint32_t listed = shared.listed;
    const unsigned long long missing = wanted - shared.before;
    if (listed <= LISTED) {
        for (uint32_t i = threadIdx.x; i < listed; i += blockDim.x) {
            const uint32_t key = shared.keys[i];
            unsigned long long above = 0;
            uint32_t equal = 0;
            for (uint32_t j = 0; j < listed; j++) {
                const uint32_t other = shared.keys[j];
                if (other > key) above += shared.measures[j];
                equal += other == key;
            }
            const unsigned long long one = shared.measures[i];
            if (above < missing && above + equal * one >= missing) {
                shared.key = key;
                shared.key_ties = uint32_t(min((missing - above + one - 1) / one, 0xffffffffull));
            }
        }
    } else {
        // A bin too full to list, which flat or tied logits make: halve the range of keys until
        // one key is left. Counts and weights above a key only grow as it falls.
        uint32_t low = 0, high = 0xffffffffu;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            unsigned long long above = 0;
            for_each(row, vocab, [&](float x, uint32_t) {
                if (x > -INFINITY && weigh.bin(x) == found && key_of(x) > middle) above += BY_WEIGHT ? weigh(x) : 1;
            });
            above = block_reduce(above, Sum(), 0ull, shared.scan);
            if (above < missing) high = middle;
            else low = middle + 1;
        }
        unsigned long long above = 0;
        for_each(row, vocab, [&](float x, uint32_t) {
            if (x > -INFINITY && weigh.bin(x) == found && key_of(x) > low) above += BY_WEIGHT ? weigh(x) : 1;
        });
        above = block_reduce(above, Sum(), 0ull, shared.scan);
        const unsigned long long one = BY_WEIGHT ? max(weigh(value_of(low)), 1ull) : 1;
        if (threadIdx.x == 0) {
            shared.key = low;
            shared.key_ties = uint32_t(min((missing - above + one - 1) / one, 0xffffffffull));
        }
    }
    __syncthreads();
    const Filter filter = {shared.key, shared.key_ties};
    __syncthreads();
    return filter;
}

// Top k, then top p of what is left. Clears the histogram for the next step.
__device__ Filter filter_of(const SamplingRow &row, const float *x, uint32_t vocab, const Weigher &weigh,
                            Histogram &histogram, DrawShared &shared) {
    const uint32_t bin = threadIdx.x * 2;
    uint2 counts = make_uint2(histogram.counts[bin], histogram.counts[bin + 1]);
    ulonglong2 weights = make_ulonglong2(histogram.weights[bin], histogram.weights[bin + 1]);
    histogram.counts[bin] = histogram.counts[bin + 1] = 0;
    histogram.weights[bin] = histogram.weights[bin + 1] = 0;
    Filter filter = {0, 0xffffffffu};
    if (row.top_k > 0 && row.top_k < vocab) filter = select<false>(x, vocab, weigh, row.top_k, counts, weights, shared);
    if (row.top_p >= 1.f) return filter;
    unsigned long long sum = weights.x + weights.y;
    if (filter.key) {
        // The weight of what top k kept.
        uint32_t ties = 0;
        sum = 0;
        for_each(x, vocab, [&](float logit, uint32_t) {
            const uint32_t key = key_of(logit);
            if (key > filter.key && logit > -INFINITY) sum += weigh(logit);
            ties += key == filter.key;
        });
        ties = block_reduce(ties, Sum(), 0u, shared.ties);
        if (threadIdx.x == 0) sum += min(ties, filter.ties) * weigh(value_of(filter.key));
    }
    sum = block_reduce(sum, Sum(), 0ull, shared.scan);
    const unsigned long long wanted = max(1ull, static_cast<unsigned long long>(ceil(double(row.top_p) * double(sum))));
    const Filter kept = filter;
    filter = select<true>(x, vocab, weigh, wanted, counts, weights, shared);
    if (filter.key > kept.key) return filter;
    return {kept.key, filter.key == kept.key ? min(kept.ties, filter.ties) : kept.ties};
}

// Draws from [begin, end) of the row. Each warp of the block sums a run of neighbouring tokens; the
// run that holds the target is then searched by the whole block.
__device__ uint32_t draw(const float *row, uint32_t begin, uint32_t end, const Weigher &weigh, Filter filter,
                         float min_p, unsigned long long random, DrawShared &shared) {
    const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    const uint32_t share = (end - begin + warps - 1) / warps;
    const uint32_t from = min(begin + warp * share, end), to = min(from + share, end);
    const unsigned long long least = static_cast<unsigned long long>(double(min_p) * 1099511627776.0);
    unsigned long long sum = 0;
    uint32_t ties = 0;
    constexpr int BATCH = 8;
    for (uint32_t i = from + lane; i < to; i += 32 * BATCH) {
        float x[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) x[k] = i + k * 32 < to ? row[i + k * 32] : -INFINITY;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const uint32_t key = key_of(x[k]);
            if (key == filter.key) ties++;
            if (key > filter.key && x[k] > -INFINITY) {
                const unsigned long long w = weigh(x[k]);
                if (w >= least) sum += w;
            }
        }
    }
    sum = warp_reduce(sum, Sum());
    ties = warp_reduce(ties, Sum());
    if (lane == 0) shared.scan[warp] = sum, shared.ties[warp] = ties;
    __syncthreads();
    unsigned long long tie_weight = filter.key ? weigh(value_of(filter.key)) : 0;
    if (tie_weight < least) tie_weight = 0;
    // Every thread walks the 32 warps: ties are kept in token order, so the sums depend on it.
    unsigned long long total = 0, mine_begin = 0, mine_end = 0;
    uint32_t my_ties = 0, seen_ties = 0;
    for (uint32_t w = 0; w < warps; w++) {
        const uint32_t left = filter.ties > seen_ties ? filter.ties - seen_ties : 0;
        if (w == warp) mine_begin = total, my_ties = left;
        total += shared.scan[w] + min(shared.ties[w], left) * tie_weight;
        seen_ties += shared.ties[w];
        if (w == warp) mine_end = total;
    }
    const unsigned long long target = __umul64hi(total, random << 32);
    if (threadIdx.x == 0) shared.run_begin = begin, shared.run_end = begin, shared.found = begin;
    __syncthreads();
    if (lane == 0 && target >= mine_begin && target < mine_end)
        shared.run_begin = from, shared.run_end = to, shared.run_ties = my_ties, shared.before = mine_begin;
    __syncthreads();
    // The whole block takes that run, neighbouring tokens a thread.
    const uint32_t length = shared.run_end - shared.run_begin, each = (length + blockDim.x - 1) / blockDim.x;
    const uint32_t own = min(shared.run_begin + threadIdx.x * each, shared.run_end), own_end = min(own + each, shared.run_end);
    uint32_t own_ties = 0;
    for (uint32_t i = own; i < own_end; i++) own_ties += filter.key && key_of(row[i]) == filter.key;
    const uint32_t ties_before = uint32_t(block_inclusive(own_ties, shared.scan)) - own_ties;
    const auto kept = [&](float x, uint32_t &tie) {
        const uint32_t key = key_of(x);
        if (filter.key && key == filter.key) return tie++ < shared.run_ties ? tie_weight : 0ull;
        if (key < filter.key || !(x > -INFINITY)) return 0ull;
        const unsigned long long w = weigh(x);
        return w >= least ? w : 0ull;
    };
    unsigned long long own_sum = 0;
    uint32_t tie = ties_before;
    for (uint32_t i = own; i < own_end; i++) own_sum += kept(row[i], tie);
    unsigned long long cumulative = shared.before + block_inclusive(own_sum, shared.scan) - own_sum;
    if (length > 0 && target >= cumulative && target < cumulative + own_sum) {
        tie = ties_before;
        for (uint32_t i = own; i < own_end; i++) {
            cumulative += kept(row[i], tie);
            if (cumulative > target) {
                shared.found = i;
                break;
            }
        }
    }
    __syncthreads();
    return shared.found;
}

// blockIdx.x is the sampling row.
extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    sample_draw(const float *logits, const SamplingRow *rows, const float *scratch, const uint32_t *scratch_rows,
                const Slice *slices, const uint32_t *histogram_rows /* [rows] of `histograms` or NO_ROW */,
                Histogram *histograms, uint32_t *sampled /* [rows] */, uint2 *results /* [rows] token, fault */,
                uint32_t *state, uint32_t vocab) {
    __shared__ DrawShared shared;
    __shared__ Slice parts[SLICES];
    wait_for_inputs();
    const SamplingRow row = rows[blockIdx.x];
    if (threadIdx.x < SLICES) parts[threadIdx.x] = slices[blockIdx.x * SLICES + threadIdx.x];
    __syncthreads();
    Best best = {-INFINITY, 0xffffffffu};
    float raw_best = -INFINITY;
    uint32_t is_nan = 0;
    for (uint32_t s = 0; s < SLICES; s++) {
        best = BetterOf()(best, Best{parts[s].best, parts[s].best_token});
        raw_best = fmaxf(raw_best, parts[s].raw_best);
        is_nan |= parts[s].is_nan;
    }
    const bool scores = row.flags & ROW_SCORE;
    uint32_t fault = 0, token = scores ? row.target : best.token;
    if (is_nan || !isfinite(raw_best)) fault = 1;
    else if (!scores && !(best.value > -INFINITY)) fault = 2;

    if (!fault && !scores && !(row.flags & ROW_GREEDY)) {
        const uint32_t scratch_row = scratch_rows[blockIdx.x];
        const float *x = scratch_row == NO_ROW ? logits + size_t(row.logit_row) * vocab : scratch + size_t(scratch_row) * vocab;
        const Weigher weigh = {best.value, row.temperature};
        const unsigned long long random = philox(row.choice, row.position, row.seed_low, row.seed_high);
        if (row.flags & ROW_FILTERED) {
            Histogram &histogram = histograms[histogram_rows[blockIdx.x]];
            const Filter filter = filter_of(row, x, vocab, weigh, histogram, shared);
            token = draw(x, 0, vocab, weigh, filter, row.min_p, random, shared);
        } else {
            // Slices first, then the tokens of one slice.
            float weight[SLICES], total = 0;
#pragma unroll
            for (uint32_t s = 0; s < SLICES; s++) {
                weight[s] = parts[s].best > -INFINITY ? parts[s].sum * expf((parts[s].best - best.value) / row.temperature) : 0.f;
                total += weight[s];
            }
            const float target = float(double(random) / 4294967296.0 * double(total));
            float cumulative = 0, within = 0;
            uint32_t chosen = NO_ROW, last = 0;
#pragma unroll
            for (uint32_t s = 0; s < SLICES; s++) {
                if (chosen == NO_ROW && cumulative + weight[s] > target) {
                    chosen = s;
                    within = (target - cumulative) / weight[s];
                }
                if (weight[s] > 0.f) last = s;
                cumulative += weight[s];
            }
            if (chosen == NO_ROW) chosen = last, within = 1.f;
            const uint32_t begin = chosen * slice_length(vocab), end = min(begin + slice_length(vocab), vocab);
            // Weights against the best of the slice, so that a slice of small ones keeps its digits.
            const Weigher local = {parts[chosen].best, row.temperature};
            const unsigned long long fraction = min(static_cast<unsigned long long>(double(within) * 4294967296.0), 0xffffffffull);
            token = draw(x, begin, end, local, Filter{0, 0xffffffffu}, 0.f, fraction, shared);
        }
    }
    if (fault && (row.flags & ROW_FILTERED)) {
        Histogram &unread = histograms[histogram_rows[blockIdx.x]];
        for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x) unread.counts[i] = 0, unread.weights[i] = 0;
    }
    if (threadIdx.x == 0) {
        results[blockIdx.x] = make_uint2(token, fault);
        sampled[blockIdx.x] = fault ? 0 : token;
        if (!fault && !scores && (row.flags & ROW_STATE)) state[size_t(row.state_row) * vocab + token] += 1;
    }
}

// blockIdx.x indexes `logprob_rows`.
extern "C" __global__ void __launch_bounds__(DRAW_THREADS)
    sample_logprobs(const float *logits, const SamplingRow *rows, const uint32_t *logprob_rows, const Slice *slices,
                    const uint2 *results, SampledRow *out /* [logprob rows] */, uint32_t vocab) {
    __shared__ Best bests[32];
    __shared__ uint32_t counts[32];
    wait_for_inputs();
    const uint32_t index = logprob_rows[blockIdx.x];
    const SamplingRow row = rows[index];
    const uint2 result = results[index];
    SampledRow &to = out[blockIdx.x];
    if (result.y) {
        if (threadIdx.x == 0) to.fault = result.y;
        return;
    }
    const float *x = logits + size_t(row.logit_row) * vocab;
    float best = -INFINITY;
    double sum = 0;
    for (uint32_t s = 0; s < SLICES; s++) best = fmaxf(best, slices[index * SLICES + s].raw_best);
    for (uint32_t s = 0; s < SLICES; s++) {
        const Slice part = slices[index * SLICES + s];
        if (part.raw_best > -INFINITY) sum += double(part.raw_sum) * exp(double(part.raw_best - best));
    }
    const double log_sum = double(best) + log(sum);
    const float chosen = x[result.x];
    uint32_t before = 0;
    // The best of the thread's own tokens (threadIdx.x, + 1024, ...) not listed yet.
    Best mine = {-INFINITY, 0xffffffffu};
    for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) {
        before += x[i] > chosen || (x[i] == chosen && i < result.x);
        mine = BetterOf()(mine, Best{x[i], i});
    }
    before = block_reduce(before, Sum(), 0u, counts);
    if (threadIdx.x == 0) {
        to.token = result.x;
        to.fault = 0;
        to.logprob = fminf(float(double(chosen) - log_sum), 0.f);
        to.rank = before + 1;
    }
    for (uint32_t n = 0; n < min(row.num_top, min(MAX_TOP, vocab)); n++) {
        const Best top = block_best(mine, bests);
        if (threadIdx.x == 0) {
            to.top_tokens[n] = top.token;
            to.top_logprobs[n] = fminf(float(double(top.value) - log_sum), 0.f);
        }
        if (mine.token == top.token) {
            mine = {-INFINITY, 0xffffffffu};
            for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x)
                if (x[i] < top.value || (x[i] == top.value && i > top.token)) mine = BetterOf()(mine, Best{x[i], i});
        }
    }
}

// Counts tokens in one row of the penalty state; the first `prompt` of them only mark it.
extern "C" __global__ void state_count(uint32_t *state /* [V] */, const uint32_t *tokens, uint32_t prompt,
                                       uint32_t count, uint32_t vocab) {
    wait_for_inputs();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count || tokens[i] >= vocab) return;
    if (i < prompt) atomicOr(state + tokens[i], IN_PROMPT);
    else atomicAdd(state + tokens[i], 1u);
}
