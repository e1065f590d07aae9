package org.bivouac.hadoop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.security.token.TokenIdentifier;

/**
 * Delegation tokens: the way by which Hadoop hands secrets to the processes of a job. A token's service is the deployment's URI, and
 * its password is the deployment's key. It is valid for as long as the deployment is, so nobody renews or cancels it, and Hadoop
 * does not try to, because no {@code TokenRenewer} is registered for its kind.
 */
final class Tokens {
    private Tokens() {}

    static Text service(String deployment) {
        return new Text(BivouacFileSystem.SCHEME + "://" + deployment);
    }

    /** A new token, or null if this process does not have the key. */
    static Token<?> issue(String deployment, Configuration conf) throws IOException {
        String key = Keys.toHandOn(deployment, conf);
        if (key == null) {
            return null;
        }
        String owner = UserGroupInformation.getCurrentUser().getUserName();
        TokenIdentifier identifier = new BivouacTokenIdentifier(deployment, owner, System.currentTimeMillis());
        byte[] password = key.getBytes(StandardCharsets.US_ASCII);
        return new Token<>(identifier.getBytes(), password, identifier.getKind(), service(deployment));
    }

    /** The key in a token that the current user has for a deployment, or null. */
    static String keyOfCurrentUser(String deployment) throws IOException {
        Text service = service(deployment);
        for (Token<?> token : UserGroupInformation.getCurrentUser().getTokens()) {
            if (token.getKind().equals(BivouacTokenIdentifier.KIND) && token.getService().equals(service)) {
                return new String(token.getPassword(), StandardCharsets.US_ASCII);
            }
        }
        return null;
    }
}
