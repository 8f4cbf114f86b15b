"""Any frontend or backend address, for hypothesis."""

from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr

ADDRESSES = st.builds(
    L3n4Addr.parse,
    st.one_of(
        st.builds(
            "{}:{}/{}".format, st.ip_addresses(v=4), st.integers(0, 65535), st.sampled_from(("TCP", "UDP", "SCTP"))
        ),
        st.builds("[{}]:{}/{}/i".format, st.ip_addresses(v=6), st.integers(0, 65535), st.sampled_from(("TCP", "UDP"))),
    ),
)
