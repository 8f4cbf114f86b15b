"""kube-proxy's own tables of nftables (`ip kube-proxy`, `ip6 kube-proxy`), beside a State. For `verify --renderer kube-proxy`.

Import `compared`. `proxy_rules` has what the rules of one family do (pure), `proxy_table` reads them from the kernel,
`proxy_differences` compares both with a State (pure).
"""
