"""TensorRT as a backend, from 8.6 on, weakly or strongly typed. The only package that imports tensorrt."""
