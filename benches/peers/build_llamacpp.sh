#!/bin/sh
# Builds llama-bench, llama-batched-bench and llama-server for this processor, from the sources
# inside PyPI's llama-cpp-python, outside the repository.
#
#     benches/peers/build_llamacpp.sh [TARGET]     # default ~/.cache/pagedllm/peers/llamacpp
#
# JOBS sets the number of compilers (default 1). The binaries end in TARGET/bin.
set -eu

VERSION=0.3.36
TARGET=${1:-$HOME/.cache/pagedllm/peers/llamacpp}
JOBS=${JOBS:-1}

mkdir -p "$TARGET"
cd "$TARGET"
if [ ! -d "llama_cpp_python-$VERSION" ]; then
    python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python \
        --dest . "llama-cpp-python==$VERSION"
    tar -xzf llama_cpp_python-$VERSION.tar.gz
fi

nice cmake -S "llama_cpp_python-$VERSION/vendor/llama.cpp" -B build -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF >build.log
nice cmake --build build --parallel "$JOBS" \
    --target llama-bench llama-batched-bench llama-server llama-perplexity >>build.log
mkdir -p bin
cp build/bin/llama-bench build/bin/llama-batched-bench build/bin/llama-server \
    build/bin/llama-perplexity bin/
echo "$TARGET/bin"
