"""The oracle: random folders of manifests, each served twice, by BPF and by nftables, in twin laboratories that must not differ.

`folders` makes the folders and lists what clients ask of one, `asker` asks with real sockets, `twins` runs the two laboratories,
`judge` compares what they answered. `make oracle N=` runs any number of folders.
"""
