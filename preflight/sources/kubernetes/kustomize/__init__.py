"""Kustomize overlays: the objects of their resources with every patch applied, as `kustomize build` does it.

`overlay` builds an overlay, `patches` applies one patch to one object. Read from kustomize 5.5.
"""
