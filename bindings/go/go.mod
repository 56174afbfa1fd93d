module github.com/pagedllm/pagedllm/bindings/go

go 1.23
