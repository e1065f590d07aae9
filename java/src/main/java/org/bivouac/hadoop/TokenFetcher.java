package org.bivouac.hadoop;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.token.DtFetcher;
import org.apache.hadoop.security.token.Token;

/** Makes tokens for {@code hadoop dtutil get bivouac://DEPLOYMENT FILE}. */
public final class TokenFetcher implements DtFetcher {
    @Override
    public Text getServiceName() {
        return new Text(BivouacFileSystem.SCHEME);
    }

    @Override
    public boolean isTokenRequired() {
        // Also without Kerberos: whoever asks for one wants it.
        return true;
    }

    @Override
    public Token<?> addDelegationTokens(Configuration conf, Credentials into, String renewer, String url) throws IOException {
        String deployment = URI.create(url).getAuthority();
        Token<?> token = deployment == null ? null : Tokens.issue(deployment, conf);
        if (token == null) {
            throw new IOException(url + ": this node does not have the deployment's key, and the configuration names no file with it");
        }
        into.addToken(token.getService(), token);
        return token;
    }
}
