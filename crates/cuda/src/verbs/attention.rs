//! Attention as launches: rotation, store, decode and prefill.

use super::address;
use crate::backend::CudaBackend;
use crate::dispatch;
use crate::kv::KvCache;
use crate::launch::{Arg, Function, Shape};
use crate::load::Attention;
use crate::plan::AttentionParams;
use crate::step::Step;
use crate::workspace::Tensor;

/// Heads that a block of the rope kernel takes.
const ROPE_WARPS: usize = 8;

impl CudaBackend {
    pub(crate) fn issue_rope_and_store(
        &mut self,
        qkv: &mut Tensor,
        attention: &Attention,
        kv: &KvCache,
    ) {
        let spec = &attention.spec;
        assert_eq!(qkv.cols(), spec.qkv_cols(), "columns of qkv");
        let cache = &kv.groups[spec.group];
        let area = &self.work().area;
        if attention.turns_whole {
            let args = [
                Arg::U64(qkv.address()),
                Arg::U64(area.positions),
                Arg::U64(area.groups[spec.group].slots),
                Arg::U64(address(attention.rope.as_deref())),
                Arg::U64(cache.keys(spec.layer_in_group)),
                Arg::U64(cache.values(spec.layer_in_group)),
                Arg::U32(spec.num_heads as u32),
                Arg::U32(spec.num_kv_heads as u32),
                Arg::U32(spec.head_dim as u32),
                Arg::U32(cache.block_size as u32),
            ];
            let threads = qkv.cols() / 16;
            let shape = Shape::new([qkv.rows(), threads.div_ceil(256), 1], 256);
            self.issue(attention.rope_and_store, shape, &args);
            return;
        }
        let half = spec.rope.as_ref().map_or(0, |rope| rope.inv_freq.len());
        let args = [
            Arg::U64(qkv.address()),
            Arg::U64(area.positions),
            Arg::U64(area.groups[spec.group].slots),
            Arg::U64(address(attention.rope.as_deref())),
            Arg::U64(address(attention.q_gain.as_ref())),
            Arg::U64(address(attention.k_gain.as_ref())),
            Arg::U64(cache.keys(spec.layer_in_group)),
            Arg::U64(cache.values(spec.layer_in_group)),
            Arg::U32(spec.num_heads as u32),
            Arg::U32(spec.num_kv_heads as u32),
            Arg::U32(spec.head_dim as u32),
            Arg::U32(half as u32),
            Arg::U32(cache.block_size as u32),
            Arg::F32(spec.qk_norm_eps),
        ];
        let heads = spec.num_heads + 2 * spec.num_kv_heads;
        let shape = Shape::new([qkv.rows(), heads.div_ceil(ROPE_WARPS), 1], ROPE_WARPS * 32);
        self.issue(attention.rope_and_store, shape, &args);
    }

    /// Rotates, stores and attends in one launch. `None` where no kernel does all of it, or where
    /// the step has longer chunks.
    pub(crate) fn issue_attend(
        &mut self,
        qkv: &Tensor,
        attention: &Attention,
        kv: &KvCache,
        step: &Step,
    ) -> Option<Tensor> {
        let attend = attention.attend?;
        let items = step.groups.get(attention.spec.group)?;
        if items.prefill_items > 0 {
            return None;
        }
        Some(self.issue_attention_with(attend, qkv, attention, kv, step))
    }

    pub(crate) fn issue_attention(
        &mut self,
        qkv: &Tensor,
        attention: &Attention,
        kv: &KvCache,
        step: &Step,
    ) -> Tensor {
        self.issue_attention_with(attention.decode, qkv, attention, kv, step)
    }

    fn issue_attention_with(
        &mut self,
        decode_kernel: Function,
        qkv: &Tensor,
        attention: &Attention,
        kv: &KvCache,
        step: &Step,
    ) -> Tensor {
        let spec = &attention.spec;
        let cache = &kv.groups[spec.group];
        let out = self.take(qkv.rows(), spec.num_heads * spec.head_dim, self.options.dtype);
        let work = self.work();
        let area = work.area.groups[spec.group];
        let mut params = AttentionParams {
            qkv: qkv.address(),
            out: out.address(),
            keys: cache.keys(spec.layer_in_group),
            values: cache.values(spec.layer_in_group),
            block_tables: area.block_tables,
            items: area.decode_items,
            sinks: address(attention.sinks.as_ref()),
            partial_out: work.partial_out.address(),
            partial_stats: work.partial_stats.address(),
            arrived: work.arrived.address(),
            heads: spec.num_heads as u32,
            kv_heads: spec.num_kv_heads as u32,
            dim: spec.head_dim as u32,
            block_size: cache.block_size as u32,
            table_stride: area.table_stride as u32,
            window: spec.window.map_or(u32::MAX, |window| window as u32),
            scale: spec.scale,
            soft_cap: spec.soft_cap.unwrap_or(0.0),
            rope: address(attention.rope.as_deref()),
            slots: area.slots,
            decode_stages: 0,
            unused: 0,
        };
        let Some(items) = step.groups.get(spec.group).copied() else {
            return out;
        };
        let kernels = &attention.kernels;
        let group = spec.num_heads / spec.num_kv_heads;
        let (y, z) = match kernels.decode_rows {
            Some(heads) => (spec.num_kv_heads, group.div_ceil(heads)),
            None => (spec.num_heads, 1),
        };
        let decode = if self.is_recording { items.padded_items } else { items.decode_items };
        let seqs = self.rows(items.decode_items, step);
        let mut shape = Shape::new([y, decode, z], kernels.decode_threads);
        if kernels.decode_tile_bytes > 0 {
            let tiles = self.decode_tiles(kernels);
            let chosen = dispatch::decode_shape(seqs * y * z, tiles, self.device.num_sms);
            params.decode_stages = chosen.stages as u32;
            shape.threads = chosen.warps * 32;
            shape.shared = chosen.warps * chosen.stages * kernels.decode_tile_bytes;
        }
        self.issue(decode_kernel, shape, &[Arg::Struct(bytemuck::bytes_of(&params))]);
        params.items = area.prefill_items;
        let num_items = items.prefill_items;
        let grid = if kernels.is_hopper_prefill {
            [(num_items * y).min(self.device.num_sms), 1, 1]
        } else {
            [num_items, y, 1]
        };
        let shape =
            Shape { shared: kernels.prefill_shared, ..Shape::new(grid, kernels.prefill_threads) };
        let maps = cache.maps(spec.layer_in_group);
        // Only Hopper's kernel takes more than the first.
        let args = [
            Arg::Struct(bytemuck::bytes_of(&params)),
            Arg::Struct(bytemuck::bytes_of(&maps[0])),
            Arg::Struct(bytemuck::bytes_of(&maps[1])),
            Arg::U32(num_items as u32),
        ];
        let taken = if kernels.is_hopper_prefill { args.len() } else { 1 };
        self.issue(attention.prefill, shape, &args[..taken]);
        out
    }
}
